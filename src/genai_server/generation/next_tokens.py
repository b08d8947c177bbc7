"""Log probabilities of tokens that may come next, after each of many prompts of one HTTP request."""

import asyncio
from collections.abc import Sequence
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
    """A question for the engine: how likely is each of `tokens` as the next token after a prompt?

    The prompt consists of `head`, which the prompts of other questions may share, and `tail`.
    """

    head: EncodedPrompt
    tail: list[int]
    tokens: list[int]
    # Tokens at the beginning of the prompt that an earlier one of the same HTTP request counts in the usage.
    num_counted: int = 0

    @property
    def num_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.head.tokens) + len(self.tail)


class ScoredFields(Protocol):
    """Fields of a body that choose the device, the priority, and the salt of the prefix cache."""

    device: str | None
    priority: int | None
    cache_salt: str | None


# The log probability of each token, or why there is none.
Logprobs = dict[int, float] | GenerationFailed


class NextTokenScorer:
    """Asks one engine for log probabilities of next tokens, for many prompts of one HTTP request. The caller must close
    it.

    The engine gets at most as many of the prompts at a time as it can run at the same time, and fewer while it has
    requests of other clients. So the prompts never fill the engine's queue, and each API key keeps its share. The first
    prompt is processed alone, so that the others find their common beginning in the prefix cache.
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
            return served.router.pick(body.device, tenant=context.tenant, low_priority=context.low_priority)[0]

        self._requests = EngineRequests(context, pick, param=param, generates=False)
        self._engine = engine
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
            low_priority=context.low_priority,
            exact=services.settings.exact,
            top_logprobs=0,
            adapter=chosen.adapter,
            unique_id=context.record.unique_id,
            key_name=context.record.key_name,
        )

    @property
    def usage(self) -> Usage:
        """Token counts of all prompts. A beginning that an earlier prompt has counted is not counted again."""
        return self._requests.usage

    async def run(self, asked: Sequence[NextTokens]) -> list[Logprobs]:
        """Ask all questions, and return for each, in order, the log probabilities or the error with which it failed.

        Raises Unavailable if the first prompt is refused, DeadlinePassed, SessionTerminated and RequestCancelled.
        """
        found = [await self._logprobs(asked[0])]
        running: set[asyncio.Future[Logprobs]] = set()
        others: list[asyncio.Future[Logprobs]] = []
        try:
            for one in asked[1:]:
                while len(running) >= self._width(len(running)):
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        each.result()  # raises what ends all
                others.append(asyncio.ensure_future(self._logprobs(one)))
                running.add(others[-1])
                await asyncio.sleep(0)  # it is submitted, and counts as work of the engine
            found += await asyncio.gather(*others)
        finally:
            for each in others:
                each.cancel()
        self._requests.finish()
        return found

    def _width(self, num_own: int) -> int:
        """Maximum number of this scorer's prompts that the engine may have at a time. It has `num_own` of them now.

        Without requests of other clients, this is the number of sequences that the engine runs at the same time.
        Otherwise it is the number of those requests, but at least two, so that one prompt is processed while another is
        on its way. More prompts at a time would slow down the streams of other clients, as if each prompt came from a
        client of its own.
        """
        num_slots = max(1, self._engine.batching.num_slots)
        num_others = self._engine.work - (0 if self._base.low_priority else num_own)
        return num_slots if num_others <= 0 else min(num_slots, max(2, num_others))

    def close(self) -> None:
        """Cancel all running engine requests."""
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
