"""What the routes of all APIs depend on: the app's services (`Services`), the context of one HTTP request with its
deadline and API key (`RequestContext`, `Deadline`), and the choice of a model and an engine (`choose_engine`).

All route dependencies are `async`: FastAPI would run others in threads, two for each request.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry
from starlette.types import Receive

from genai_server.config.settings import Settings
from genai_server.engine_client.client import EngineClient
from genai_server.errors import AsIs, DeadlinePassed, InvalidField, RequestCancelled, ServerStopping, SessionTerminated
from genai_server.generation.catalog import Catalog, ChosenModel, ModelStore, ServedModel
from genai_server.generation.output_spec import CheckedSpecs
from genai_server.grammar_checker.checker import GrammarChecker
from genai_server.http.leniency import Leniency
from genai_server.http.middleware.authentication import rights
from genai_server.http.middleware.request_lifetime import Drain
from genai_server.http.request_state import CountAnswers, RunInTurn, at_once, request_state
from genai_server.http.telemetry.key_usage import KeyUsage
from genai_server.http.telemetry.recent_requests import RecentRequests
from genai_server.http.telemetry.request_record import RequestRecord
from genai_server.media.audio.recordings import Recordings
from genai_server.media.images.reader import Images
from genai_server.messages.generation_request import FinishReason, ModelInfo
from genai_server.messages.prefix_cache import prefix_digests
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.model_files.pooling_model import Task
from genai_server.text.codec import TextCodec
from genai_server.timing import Clock
from genai_server.tool_servers.client import Tools
from genai_server.workers.tasks import Requester

T = TypeVar("T")

HEADER = "X-Request-Timeout"


@dataclass(frozen=True)
class Services:
    """Everything that routes need and that exists once in the app: settings, models, helper processes, metrics and
    stores. `create_app` creates it, and routes receive it by the dependency `services`.
    """

    settings: Settings
    models: Catalog
    grammars: GrammarChecker
    images: Images
    recordings: Recordings
    specs: CheckedSpecs
    # In seconds.
    clock: Clock
    drain: Drain
    # The Prometheus metrics.
    registry: CollectorRegistry
    # Models on disk and on a hub.
    store: ModelStore
    # The requests that have ended.
    recent: RecentRequests
    # Requests and tokens by day and API key.
    usage: KeyUsage
    # What runs tools for clients.
    tools: Tools

    async def served(self, model: str | None, task: Task | None = None) -> ServedModel:
        """Return the model with the id `model`, for a request that only needs the model's tokenizer and chat template.
        If `model` is None, this is the first model, or the first one that supports `task`. The model is loaded first
        where needed.

        Raises ModelNotFound, TaskUnsupported if the model does not support the task, and Unavailable if the model is
        not loaded in time.
        """
        chosen = self.models.choose(model) if task is None else self.models.choose_for(model, task)
        _, served = await self.models.serving(chosen, self.settings.request_timeout)
        return served


async def services(request: Request) -> Services:
    """Return the app's services. This is a FastAPI dependency; routes declare it with `ServicesDep`."""
    app_services: Services = request.app.state.services
    return app_services


# The type of a route's parameter.
ServicesDep = Annotated[Services, Depends(services)]


class ClientLeft(Exception):
    """Raised to end the work for a request whose client has disconnected before it has received its answer."""


class Deadline:
    """The time at which the answer to a request must have ended: GENAI_REQUEST_TIMEOUT after the request began, or
    earlier if the request asks for it.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        # Seconds from now (GENAI_REQUEST_TIMEOUT).
        self._limit = limit
        # In seconds.
        self._clock = clock
        self._began = clock()
        # Seconds from the request's beginning to the deadline; a request may ask for fewer.
        self.seconds = float(limit)

    def tighten(self, seconds: float, *, param: str) -> None:
        """Bring the deadline forward to `seconds` after the request began, unless it is earlier already.

        Raises InvalidField, naming the field or header `param`, if `seconds` is not positive or exceeds
        GENAI_REQUEST_TIMEOUT.
        """
        if not 0 < seconds <= self._limit:
            raise InvalidField(
                param,
                "must be greater than 0 and at most",
                limit=f"{self._limit} seconds",
                limited_by="GENAI_REQUEST_TIMEOUT",
                given=AsIs(f"{seconds:g}"),
            )
        self.seconds = min(self.seconds, seconds)

    @property
    def seconds_left(self) -> float:
        """Seconds from now to the deadline; 0 once it has passed."""
        return max(0.0, self._began + self.seconds - self._clock())

    def require_end(self, reason: FinishReason | None) -> None:
        """Raise an error if a result was cut off, for uses in which a partial result is worthless. `reason` says what
        ended the result.

        Raises DeadlinePassed for a timeout, and SessionTerminated or RequestCancelled if an operator has ended the
        result. After any other reason, or None, nothing happens.
        """
        match reason:
            case FinishReason.TIMEOUT:
                raise DeadlinePassed(
                    f"the request did not finish within {self.seconds:g} s (its timeout or GENAI_REQUEST_TIMEOUT)"
                )
            case FinishReason.TERMINATED:
                raise SessionTerminated("an operator has terminated the device's session")
            case FinishReason.CANCELLED:
                raise RequestCancelled("an operator has cancelled the request")


@dataclass(frozen=True)
class RequestContext:
    """What is known of one HTTP request while it is answered: its deadline, the rights of its API key, and its record
    for logs and metrics. The FastAPI dependency `context` creates it for a route.
    """

    deadline: Deadline
    # Reports when the client disconnects.
    receive: Receive
    record: RequestRecord
    leniency: Leniency
    # Digest of the API key; None where no key is needed.
    key_digest: bytes | None = None
    # Whether requests with different keys share cached prefixes.
    shares_prefixes: bool = False
    # What counts for the key while the request runs.
    counted: ExitStack = field(default_factory=ExitStack)
    # Whether the answer may wait for all others; see GenerationRequest.
    low_priority: bool = False
    # Called when nothing keeps the body's data any more, which then does not count towards the limit of all bodies.
    release_body: Callable[[], None] = lambda: None
    # Counts its answers towards the limits of its key; see HttpRequestState.
    count_answers: CountAnswers = lambda number, param: None
    # Whether its priority counts next to those of other keys.
    has_absolute_priority: bool = False
    # Runs what takes long for a long body.
    in_turn: RunInTurn = at_once
    # Maximum number of tokens of reasoning, where the body has no budget; None for the model's default.
    thinking_budget: int | None = None

    @property
    def tenant(self) -> str:
        """A digest of the request's API key, by which engines and worker processes tell API keys apart when they let
        them take turns. It is "" for all requests without a key.
        """
        return "" if self.key_digest is None else _digest(None, self.key_digest, b"tenant")

    def precedence(self, priority: int | None) -> int:
        """Return the priority that the request has compared with requests of other API keys: `priority`, the field of
        the body, if the key has the right to such a priority, and otherwise 0.
        """
        return (priority or 0) if self.has_absolute_priority else 0

    def answer_id(self, prefix: str) -> str:
        """Return the id of the response: `prefix`, such as "chatcmpl-", followed by the random part of the request's
        `unique_id`.
        """
        return prefix + self.record.unique_id.removeprefix("req-")

    def cache_salt(self, salt: str | None) -> str | None:
        """Return the salt for the engine's prefix cache: only requests with equal salts share cached prefixes. None if
        the request shares prefixes with all other requests without a salt.

        The salt is a digest of `salt`, the field `cache_salt` of the body, and of the API key, unless all keys share
        prefixes (GENAI_SHARED_PREFIX_CACHE). It reveals neither of them.
        """
        own_cache = None if self.shares_prefixes else self.key_digest
        if own_cache is None and salt is None:
            return None
        return _digest(salt, own_cache, b"prefix cache")

    @property
    def owner(self) -> TaskOwner:
        """The owner of the tasks that worker processes do for this request. The worker pool lets API keys take turns,
        and also the requests of one key.
        """
        return TaskOwner(self.tenant, self.record.unique_id, self.low_priority)

    def requester(self, salt: str | None = None) -> Requester:
        """Return the owner of the tasks that prepare images and grammars for this request, together with the salt of
        the prefix cache.

        `salt` is the field `cache_salt` of the body. Prepared images are shared only by requests with equal salts.
        """
        return Requester(self.owner, self.cache_salt(salt))

    def answer_memory(self, salt: str | None) -> str:
        """Return the name under which the engine keeps the tokens of earlier answers, in order to find draft tokens for
        speculative decoding of this request among them. `salt` is the field `cache_salt` of the body.

        Requests with different API keys or salts have different names, so no key's answers influence those of another
        key.
        """
        return _digest(salt, self.key_digest, b"earlier answers")

    def detach(self) -> ExitStack:
        """Keep the request counted towards the limits of its API key, and its record open, beyond the end of its HTTP
        response, until the returned stack is closed. Background responses use this, which continue after the response.
        """
        self.record.is_detached = True
        counted = self.counted.pop_all()
        counted.callback(self.record.end)
        return counted

    async def run_while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine `work` while the client is connected, and return its result.

        Raises ClientLeft as soon as the client has disconnected, and ServerStopping when the server stops. Both cancel
        `work`.
        """
        return await while_connected(work, self.receive)

    async def run_in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine `work`, which needs no engine, while the client is connected and until the deadline. Return
        its result.

        Raises DeadlinePassed at the deadline, ClientLeft as soon as the client has disconnected, and ServerStopping
        when the server stops. All three cancel `work`.
        """

        async def limited() -> T:
            async with within(self.deadline):
                return await work

        try:
            return await self.run_while_connected(limited())
        finally:
            work.close()  # it may not have begun


def _digest(salt: str | None, key_digest: bytes | None, purpose: bytes) -> str:
    return blake2b((salt or "").encode(), key=key_digest or b"", digest_size=16, person=purpose).hexdigest()


@asynccontextmanager
async def within(deadline: Deadline) -> AsyncGenerator[None]:
    """Context manager that cancels the block at the deadline and then raises DeadlinePassed."""
    try:
        async with asyncio.timeout(deadline.seconds_left):
            yield
    except TimeoutError:
        deadline.require_end(FinishReason.TIMEOUT)
        raise


async def while_connected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Run the coroutine `work` while the client is connected, and return its result.

    `receive` is the request's ASGI function, which reports that the client has disconnected. Raises ClientLeft as soon
    as that happens, and ServerStopping when the server stops. Both cancel `work`, possibly before its first step.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    except asyncio.CancelledError:
        raise ServerStopping from None  # nothing else cancels what a client waits for
    finally:
        working.cancel()
        leaving.cancel()


async def context(request: Request, services: ServicesDep) -> RequestContext:
    """Create the context of a request, whose deadline takes the header X-Request-Timeout into account. This is a
    FastAPI dependency; routes declare it with `RequestContextDep`.

    Raises InvalidField if the header is not a positive number of seconds or exceeds GENAI_REQUEST_TIMEOUT.
    """
    state, access = request_state(request.scope), rights(request)
    on_behalf = state.receipt.on_behalf
    limit = services.settings.request_timeout if on_behalf is None else on_behalf.seconds
    deadline = Deadline(limit, services.clock)
    timeout = request.headers.get(HEADER)
    if timeout is not None:
        try:
            seconds = float(timeout)
        except ValueError:
            raise InvalidField(HEADER, "must be a number of seconds", given=timeout) from None
        deadline.tighten(seconds, param=HEADER)
    return RequestContext(
        deadline,
        request.receive,
        state.record,
        state.leniency,
        access.digest,
        services.settings.shared_prefix_cache,
        state.counted,
        state.low_priority,
        state.held_body.release,
        state.count_answers,
        access.has_absolute_priority,
        state.in_turn,
        None if access.key is None else access.key.thinking_budget,
    )


class EngineFields(Protocol):
    """The fields of a request's body by which `choose_engine` chooses: the model's id, the device, and the time limit
    of the answer in seconds. Each is None where the body does not have it.
    """

    model: str | None
    device: str | None
    timeout: float | None


class EngineChoice(NamedTuple):
    """The model and the engine that were chosen for a request, with what the engine has reported of the model and with
    the tokenizer for the engine's device. `choose_engine` creates it.
    """

    chosen: ChosenModel
    served: ServedModel
    engine: EngineClient
    model: ModelInfo
    codec: TextCodec


async def choose_engine(services: Services, context: RequestContext, body: EngineFields, task: Task) -> EngineChoice:
    """Choose the model of a request, which may have to be loaded first, and an engine of the model with capacity. The
    request's record gets the model and the device, and the request's deadline gets the body's time limit.

    Once the prompt is known, `choose_by_prompt` chooses between the model's engines again. Raises ServerDraining,
    ModelNotFound, TaskUnsupported, InvalidField and Unavailable.
    """
    services.drain.require_open()
    chosen = services.models.choose_for(body.model, task)
    if body.timeout is not None:
        context.deadline.tighten(body.timeout, param="timeout")
    with context.record.arrival.loading():
        chosen, served = await services.models.serving(chosen, context.deadline.seconds_left)
    engine, info = served.router.pick(body.device, tenant=context.tenant, low_priority=context.low_priority)
    context.record.model, context.record.device = chosen.id, engine.device
    return EngineChoice(chosen, served, engine, info, served.codec_of(engine.device))


def choose_by_prompt(
    context: RequestContext, choice: EngineChoice, tokens: Sequence[int], *, device: str | None, cache_salt: str | None
) -> EngineChoice:
    """Choose between the engines of the model in `choice` again, now that the prompt is known, and return `choice` with
    that engine. The engine that has cached most of the prompt is preferred, unless others have less work.

    `tokens` are the ids of the prompt's tokens up to its first image; `device` and `cache_salt` are fields of the body.
    Raises NoEngineReady.
    """
    adapter = choice.chosen.adapter
    prefix = prefix_digests(tokens, context.cache_salt(cache_salt), None if adapter is None else adapter.name)
    router = choice.served.router
    engine, model = router.pick(device, prefix=prefix, tenant=context.tenant, low_priority=context.low_priority)
    context.record.device = engine.device
    return choice._replace(engine=engine, model=model)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# The type of a route's parameter.
RequestContextDep = Annotated[RequestContext, Depends(context)]
