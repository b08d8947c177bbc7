"""Log probabilities of tokens that may come next, after each of many prompts of one HTTP request."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from genai_server.engine_client.client import EngineClient
from genai_server.errors import DeadlinePassed, GenerationFailed, RequestCancelled
from genai_server.generation.dependencies import EngineChoice, RequestContext, Services
from genai_server.generation.engine_requests import EngineRequests
from genai_server.generation.prompts import EncodedPrompt, engine_images
from genai_server.http.telemetry.usage import Usage
from genai_server.messages.generation_request import GenerationRequest


@dataclass(frozen=True)
class NextTokens:
    """Asks how likely some tokens are after a prompt, which is a beginning that others may share and its own end."""

    head: EncodedPrompt
    tail: list[int]
    tokens: list[int]
    # Tokens at the beginning of the prompt that an earlier one of the same HTTP request counts in the usage.
    num_counted: int = 0

    @property
    def num_tokens(self) -> int:
        """The length of the prompt."""
        return len(self.head.tokens) + len(self.tail)


class ScoredFields(Protocol):
    """The fields of a body that say where and when its prompts are read, and who shares their cached beginnings."""

    device: str | None
    priority: int | None
    cache_salt: str | None


# The log probability of each token, or why there is none.
Logprobs = dict[int, float] | GenerationFailed


class NextTokenScorer:
    """Asks one engine of a model, with as many prompts at a time as it runs at once.

    So they never fill its queue, and the keys' shares of its places hold for each. The first prompt is read alone: the
    others find what they have in common with it in the cache. Must be closed.
    """

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        choice: EngineChoice,
        body: ScoredFields,
        *,
        param: str,
    ) -> None:
        chosen, served, engine, model, _ = choice

        async def pick() -> EngineClient:
            if engine.is_connected:
                return engine
            return served.router.pick(body.device, tenant=context.tenant, background=context.background)[0]

        self._requests = EngineRequests(context, pick, param=param, generates=False)
        self._width = max(1, engine.batching.num_slots)
        self._base = GenerationRequest(
            context.record.request_id,
            [],
            max_tokens=1,
            max_length=model.max_length,
            # The most likely token may be one that ends answers.
            ignore_eos=True,
            cache_salt=context.cache_salt(body.cache_salt),
            tenant=context.tenant,
            priority=body.priority or 0,
            precedence=context.precedence(body.priority),
            background=context.background,
            exact=services.settings.exact,
            top_logprobs=0,
            adapter=chosen.adapter,
            unique_id=context.record.unique_id,
            key_name=context.record.key_name,
        )

    @property
    def usage(self) -> Usage:
        """The tokens of all prompts, of which each counts what no earlier one has counted."""
        return self._requests.usage

    async def run(self, asked: Sequence[NextTokens]) -> list[Logprobs]:
        """The log probabilities for each prompt, in their order.

        Raises Unavailable if the first prompt is refused, DeadlinePassed, SessionTerminated and RequestCancelled.
        """
        found: list[Logprobs] = [{} for _ in asked]

        async def work(numbers: Iterator[int]) -> None:
            for number in numbers:
                found[number] = await self._logprobs(asked[number])

        await work(iter([0]))
        numbers = iter(range(1, len(asked)))
        workers = [asyncio.ensure_future(work(numbers)) for _ in range(min(self._width, len(asked) - 1))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        self._requests.finish()
        return found

    def close(self) -> None:
        """Cancel what runs."""
        self._requests.close()

    async def _logprobs(self, asked: NextTokens) -> Logprobs:
        request = structs.replace(
            self._base,
            prompt=asked.head.tokens + asked.tail,
            images=engine_images(asked.head, self._base.cache_salt),
            scored_tokens=asked.tokens,
        )
        try:
            answer = await self._requests.run(request, num_counted=asked.num_counted)
        except (DeadlinePassed, RequestCancelled):  # they end all
            raise
        except GenerationFailed as error:
            return error
        return dict(answer.logprobs[0].top)
