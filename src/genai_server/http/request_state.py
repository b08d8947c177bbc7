"""The state of one HTTP request, which is kept in its ASGI scope (`HttpRequestState`, which `start_request` creates),
and the turns that API keys take when requests do long work (`KeyTurns`, `ParsingThread`).
"""

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.types import Scope

from genai_server.http.api_keys import Access
from genai_server.http.body_budget import HeldBody
from genai_server.http.error_wording import DEFAULT, Dialect
from genai_server.http.leniency import Leniency
from genai_server.http.telemetry.request_record import RequestRecord
from genai_server.http.upload import Upload
from genai_server.timing import Arrival, Clock, request_clock

_KEY = "http_request"
# Where the caller of the app leaves a Receipt.
_RECEIPT = "receipt"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# In bytes. Parsing a body of at most this size takes less time than handing it to a thread.
_SHORT = 8_000

T = TypeVar("T")

CountAnswers = Callable[[int, str], None]


def _count_nothing(number: int, param: str) -> None:
    """Do nothing. This stands in for the function that counts a request's answers where the request has no limits."""


@dataclass(frozen=True)
class OnBehalf:
    """Marks a request that the server itself makes on behalf of a client, for example for a line of a batch, and says
    for whom. The client does not wait for the answer.
    """

    # The client's `holder`, as http/middleware/authentication.py defines it; None where no key is needed.
    holder: str | None
    # Seconds within which it must end, in place of GENAI_REQUEST_TIMEOUT.
    seconds: int


@dataclass(frozen=True)
class Receipt:
    """What the caller of the ASGI app tells the app about a request, by `with_receipt`: when it arrived, and whether it
    is counted already. The caller is the HTTP server, a WebSocket, a batch, or the ingress of Ray Serve.
    """

    # When the first byte came, by `request_clock`; None if that is unknown.
    arrived: float | None = None
    # The limit of open files, if the connection is beyond it.
    max_files: float | None = None
    # Whether the ingress has counted it: the limits of its key hold there.
    is_counted: bool = False
    # None for a request of a client.
    on_behalf: OnBehalf | None = None


class RunInTurn(Protocol):
    """A function that runs a job over all of a request's content, such as all its messages or schemas, in such a way
    that long jobs of one API key do not delay other keys. `HttpRequestState.in_turn` is one; `at_once` is one for
    callers without other requests.
    """

    async def __call__(self, job: Callable[[], T], *, is_long: bool = False) -> T:
        """Run the job and return its result. A long job runs in a thread, once it is the turn of the request's API key.

        A job is long if the request's body is large, or if `is_long` says that the job takes longer than the body's
        size suggests.
        """
        ...


async def at_once(job: Callable[[], T], *, is_long: bool = False) -> T:
    """Run `job` at once in the calling thread, and return its result, for callers that have no other requests to delay.
    `is_long` has no effect.
    """
    return job()


class KeyTurns:
    """Lets waiting requests do something one at a time: only the request that has the turn may do it, then the next one
    gets the turn. API keys with waiting requests alternate, so that many requests of one key do not delay another.
    """

    def __init__(self) -> None:
        self._is_taken = False
        # The requests that wait, by their keys, whose order is that of their turns.
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    async def take(self, key: Hashable) -> None:
        """Wait until this request, whose API key is `key`, has the turn. The caller must end the turn with
        `pass_on`.
        """
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.pass_on()
            raise

    def pass_on(self) -> None:
        """End the current turn and give the next one to a waiting request: the oldest of the API key that is next."""
        while self._waiting:
            key = next(iter(self._waiting))
            requests = self._waiting.pop(key)
            turn = requests.popleft()
            if requests:
                self._waiting[key] = requests
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._is_taken = False

    async def wait_for_turn(self, key: Hashable) -> None:
        """Wait until this request, whose API key is `key`, has the turn. The turn ends by itself after one iteration of
        the event loop.

        Without this, hundreds of requests of one key that arrive together would all run before the next request of
        another key.
        """
        await self.take(key)
        asyncio.get_running_loop().call_soon(self.pass_on)


class ParsingThread:
    """Runs long jobs of requests in a thread, one at a time because each holds the GIL. API keys with waiting jobs
    alternate. BodyLimits has one for all requests of a process.
    """

    def __init__(self) -> None:
        self._turns = KeyTurns()

    async def run(self, job: Callable[[], T], *, num_bytes: int, key: Hashable = None) -> T:
        """Run a job that reads `num_bytes` bytes of a body, for a request with the API key `key`, and return its
        result.

        If these are few bytes, the job runs at once in the calling thread, because handing it to another thread would
        take longer.
        """
        if num_bytes <= _SHORT:
            return job()
        await self._turns.take(key)
        try:
            return await asyncio.to_thread(job)
        finally:
            self._turns.pass_on()


@dataclass
class HttpRequestState:
    """Everything that is kept about one HTTP request while it is handled. `start_request` creates it, the middlewares
    fill it in, from the outermost on, and `request_state` returns it.
    """

    receipt: Receipt
    # The record for observers, which has the request's ids.
    record: RequestRecord
    # The format of the errors of the request's API.
    dialect: Dialect = DEFAULT
    # None until the request is authenticated, and for a request without a key at an open path.
    access: Access | None = None
    # Closed when the request no longer counts towards its key's limits: at the end of it or of its background response.
    counted: ExitStack = field(default_factory=ExitStack)
    # Counts the request's answers towards its key's limits; the first is counted with the request. Takes the number of
    # answers and the field that asks for them; raises RateLimitExceeded and InvalidField.
    count_answers: CountAnswers = _count_nothing
    # What the endpoint may leave out of the request.
    leniency: Leniency = field(default_factory=Leniency)
    # The request's body if it is a form with a file.
    upload: Upload | None = None
    # Whether the answer has low priority (see GenerationRequest). Set by the server itself, never by a client.
    low_priority: bool = False
    # Size of the request's body; set by BodyLimits.
    num_body_bytes: int = 0
    # Parses the request's body, in a thread if it is long; set by BodyLimits.
    parsing: ParsingThread = field(init=False, repr=False)
    # The bytes of the request's body that are in memory; set by BodyLimits.
    held_body: HeldBody = field(init=False, repr=False)

    @property
    def key(self) -> bytes | None:
        """An id of the request's API key or admin key, by which keys take turns; None where no key is needed."""
        return None if self.access is None else self.access.digest

    async def parse(self, job: Callable[[], T], *, num_bytes: int) -> T:
        """Run a job that reads `num_bytes` bytes of the request's body, and return its result. A long job runs in a
        thread, once it is the turn of the request's API key.
        """
        return await self.parsing.run(job, num_bytes=num_bytes, key=self.key)

    async def in_turn(self, job: Callable[[], T], *, is_long: bool = False) -> T:
        """Run a job that goes through the whole request, and return its result. If the body is large or `is_long` is
        True, the job runs in a thread, once it is the turn of the request's API key. This is a RunInTurn.
        """
        return await self.parse(job, num_bytes=_SHORT + 1 if is_long else self.num_body_bytes)


def request_state(scope: Scope) -> HttpRequestState:
    """Return the state of the request with the ASGI scope `scope`, which `start_request` has stored there."""
    state: HttpRequestState = scope["state"][_KEY]
    return state


def start_request(
    scope: Scope, model: str = "", clock: Clock = request_clock, dialects: Sequence[Dialect] = ()
) -> HttpRequestState:
    """Create the state of a request, and store it in the request's ASGI scope, in place of everything else that the
    scope's `state` contains. The caller's Receipt, if there is one, becomes part of the state.

    `model` is recorded as the request's model until one is chosen. The error format is that of the first of `dialects`
    to which the request belongs. The request's id is the client's `x-request-id` if that is a short plain name,
    otherwise a new one.
    """
    receipt = receipt_of(scope.get("state", {}))
    header = Headers(scope=scope).get("x-request-id", "")
    unique_id = f"req-{secrets.token_hex(12)}"
    request_id = header if _PLAIN_NAME.fullmatch(header) else unique_id
    arrival = Arrival(clock, receipt.arrived)
    record = RequestRecord(scope, request_id, unique_id, model, arrival, time.time() - arrival.elapsed)
    record.is_low_priority = receipt.on_behalf is not None
    dialect = next((dialect for dialect in dialects if dialect.covers(scope)), DEFAULT)
    state = HttpRequestState(receipt, record, dialect, low_priority=record.is_low_priority)
    scope["state"] = {_KEY: state}
    return state


def with_receipt(receipt: Receipt) -> dict[str, Any]:
    """Return the `state` for an ASGI scope in which the caller of the app passes `receipt` to the app."""
    return {_RECEIPT: receipt}


def receipt_of(state: Mapping[str, Any]) -> Receipt:
    """Return the receipt that the caller of the app has left in `state`, the state of the ASGI scope; an empty one if
    there is none.
    """
    receipt: Receipt = state.get(_RECEIPT, Receipt())
    return receipt


def request_id_headers(scope: Scope) -> dict[str, str]:
    """Return the response headers with the request's id: `x-request-id`, and the header that the request's API has for
    it, if it has another one.
    """
    state = request_state(scope)
    id_header = state.dialect.id_header
    headers = {"x-request-id": state.record.request_id}
    return headers if id_header is None else {**headers, id_header: state.record.request_id}
