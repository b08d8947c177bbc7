"""The middleware that receives the body of a request before its route is called (`BodyLimits`), within limits of size,
time, nesting and number of values. The files of forms for some paths are written to disk while they arrive, not kept in
memory (`Uploads`).
"""

import asyncio
import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.errors import (
    BodiesTooLarge,
    BodyTooLarge,
    BodyTooSlow,
    GenaiServerError,
    MalformedBody,
    NestedTooDeep,
    OriginForbidden,
    TooManyValues,
    UploadUnavailable,
)
from genai_server.http.body_budget import BodyBudget, HeldBody
from genai_server.http.error_responses import error_response, malformed
from genai_server.http.request_state import HttpRequestState, KeyTurns, ParsingThread, request_state
from genai_server.http.upload import FormParser, Upload
from genai_server.system.processes import own_folder

# A body over the limit is read on, and dropped, up to this many times the limit: a client that is still sending when
# the connection is closed may never see the response.
_DRAINED = 8
# Deepest nesting. A JSON schema takes two levels for each of its own; code that walks through a body, such as a chat
# template, recurses for each.
MAX_NESTING = 100
# Most lists and objects. The longest conversation with its tools has 30,000 to 40,000; validating each takes some
# microseconds.
MAX_CONTAINERS = 50_000
# A string without an end extends to the end of the text, so each character is read once.
_JSON_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NON_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@dataclass
class _Reading:
    """The state of one request body that BodyLimits is receiving: its limit, the bytes so far, and the error with which
    the request will be refused, if any.
    """

    # Maximum number of bytes, and the setting that has it.
    limit: int
    setting: str = "GENAI_MAX_BODY_BYTES"
    is_json: bool = True
    # The bytes that are kept.
    body: bytearray = field(default_factory=bytearray)
    # Bytes received.
    size: int = 0
    # Whether there is more to receive.
    more: bool = True
    # Why nothing is kept, if nothing is.
    error: GenaiServerError | None = None

    def drop(self, error: GenaiServerError) -> None:
        """Free the received bytes and keep no further ones, because the request will be refused with `error`."""
        self.error = error
        self.body.clear()


class OtherBodies(Protocol):
    """What receives the bodies of POST requests for certain paths in place of BodyLimits, for example to write them to
    files. `Uploads` implements it.
    """

    @property
    def paths(self) -> Collection[str]:
        """The paths of the requests whose bodies this object receives."""

    async def pass_on(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive the body of a request, and then call `app`, or answer with an error if the body cannot be used."""


class BodyLimits:
    """A pure ASGI middleware that receives bodies within limits, and refuses requests with other bodies before their
    routes are called. `limit` is the maximum size of a body in bytes, and `seconds` is the time within which it must
    arrive.

    A JSON body must also pass `check_json`. Requests whose bodies have arrived begin one by one, and API keys take
    turns. `bodies` counts the memory of all bodies. `media_limit` returns the maximum size in bytes of a body that may
    contain images or audio, or 0 while no served model takes them. `others` receive the bodies for their own paths.
    `form_limits` maps paths to the maximum size in bytes of forms with recordings, which are kept in memory. The
    request's state gets a ParsingThread.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: int,
        seconds: float,
        bodies: BodyBudget,
        *,
        media_limit: Callable[[], int] = lambda: 0,
        others: Sequence[OtherBodies] = (),
        form_limits: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.app = app
        # Keyed by path.
        self._others = {path: other for other in others for path in other.paths}
        self._form_limits = form_limits
        # Maximum number of bytes of one body without images.
        self.limit = limit
        self._media_limit = media_limit
        # Most seconds for one body to arrive.
        self.seconds = seconds
        self._bodies = bodies
        self._parsing = ParsingThread()
        self._beginning = KeyTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = request_state(scope)
        state.parsing = self._parsing
        other = self._others.get(scope["path"]) if scope["method"] == "POST" else None
        if other is not None:
            await other.pass_on(self.app, scope, receive, send)
            return
        reading = _Reading(self.limit)
        if (limit := self._form_limits.get(scope["path"])) is not None:
            reading = _Reading(limit, "GENAI_MAX_AUDIO_BODY_BYTES", is_json=False)
        state.held_body = self._bodies.open(state.key, reading.drop)
        try:
            await self._pass(reading, state, scope, receive, send)
        finally:
            state.held_body.release()

    async def _pass(
        self, reading: _Reading, state: HttpRequestState, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                is_whole = await self._read(reading, state.held_body, receive)
        except TimeoutError:
            too_slow = BodyTooSlow(
                f"the body must come within {self.seconds} seconds (GENAI_BODY_TIMEOUT); "
                f"{reading.size} bytes had come by then"
            )
            await _refuse(reading.error or too_slow, reading, scope, receive, send)
            return
        if not is_whole:
            return
        state.record.arrival.received()
        state.held_body.arrived()
        state.num_body_bytes = reading.size
        await self._beginning.wait_for_turn(state.key)
        try:
            await self._check(reading, state)
        except GenaiServerError as error:
            await _refuse(error, reading, scope, receive, send)
            return
        replay = replayed(bytes(reading.body), receive)
        reading.body.clear()
        await self.app(scope, replay, send)

    async def _read(self, reading: _Reading, held_body: HeldBody, receive: Receive) -> bool:
        """Receive the body until it is complete, or so far beyond the limit that the rest is not awaited. Return False
        if the client has disconnected, and True otherwise. Errors are left in `reading`.
        """
        while reading.more and reading.size <= reading.limit * _DRAINED:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            part: bytes = message.get("body", b"")
            reading.size += len(part)
            reading.more = message.get("more_body", False)
            if reading.error is None:
                self._keep(reading, held_body, part)
        return True

    def _keep(self, reading: _Reading, held_body: HeldBody, part: bytes) -> None:
        if (
            reading.is_json
            and reading.size > reading.limit == self.limit
            and (media_limit := self._media_limit()) > self.limit
        ):
            reading.limit, reading.setting = media_limit, "GENAI_MAX_MEDIA_BODY_BYTES"
            held_body.has_media = True
        if reading.size > reading.limit:
            reading.drop(BodyTooLarge())
            held_body.release()
            return
        try:
            held_body.resize(len(reading.body) + len(part))
        except BodiesTooLarge as error:
            reading.drop(error)
            held_body.release()
        else:
            reading.body += part

    async def _check(self, reading: _Reading, state: HttpRequestState) -> None:
        if reading.size > reading.limit:
            size = f"more than {reading.size}" if reading.more else str(reading.size)
            raise BodyTooLarge(f"the body may have at most {reading.limit} bytes ({reading.setting}), given {size}")
        if reading.error is not None:
            raise reading.error
        if reading.is_json:
            await state.parse(lambda: check_json(reading.body), num_bytes=len(reading.body))


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI `receive` function that first returns the body `body`, which has been received already, and from
    then on what `receive` returns.
    """
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def check_json(text: bytes | bytearray) -> None:
    """Check the encoding, the nesting and the number of values of a JSON text without parsing it. The text need not be
    valid JSON.

    Raises MalformedBody for a text that is not UTF-8, NestedTooDeep for more than MAX_NESTING levels, and TooManyValues
    for more than MAX_CONTAINERS lists and objects.
    """
    if not json.detect_encoding(text).startswith("utf-8"):
        raise MalformedBody("the body is not JSON in UTF-8")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise malformed(error) from None
    if text.count(b"[") + text.count(b"{") <= MAX_NESTING:
        return
    brackets = brackets_of(text)
    containers = brackets.count(b"[")
    if containers > MAX_CONTAINERS:
        raise TooManyValues(f"the body may have at most {MAX_CONTAINERS} lists and objects in all, given {containers}")
    if is_nested(brackets, by_more_than=MAX_NESTING):
        raise NestedTooDeep(
            f"the lists and objects of the body may be nested {MAX_NESTING} deep, given more than {MAX_NESTING}"
        )


def brackets_of(text: bytes | bytearray) -> bytes:
    """Return the brackets and braces of a JSON text in order, without those in strings. Braces are returned as `[` and
    `]`.
    """
    return bytes(_JSON_TEXT.sub(b"", text)).translate(_BRACKETS, _NON_BRACKETS)


def is_nested(brackets: bytes, *, by_more_than: int) -> bool:
    """Return whether `brackets`, a text of `[` and `]`, are nested more deeply than `by_more_than` levels. They need
    not match.
    """
    for _ in range(by_more_than):
        inner = brackets
        brackets = inner.replace(b"[]", b"")
        if brackets == inner:
            break
    return b"[]" in brackets or brackets.count(b"[") > by_more_than


async def _refuse(error: GenaiServerError, reading: _Reading, scope: Scope, receive: Receive, send: Send) -> None:
    response = error_response(error, scope)
    if reading.more:
        response.headers["connection"] = "close"
    await response(scope, receive, send)


# Values of Sec-Fetch-Site, which browsers set and no web page can change.
_OTHER_ORIGIN = ("cross-site", "same-site")
# Name of the folder in the engines' folder.
_FOLDER = "uploads"
# Bytes that are written at once, and those that must arrive within the time limit.
_WRITTEN = 256 * 1024
_TIMED = 1024 * 1024
# A refused body is read on, and dropped, up to this many times the limit: a client that is still sending when the
# connection is closed may never see the response.
_DRAINED_UPLOADS = 2


@contextlib.contextmanager
def upload_folder(parent: Path) -> Iterator[Path]:
    """Context manager that creates a folder for the uploaded files of this process within the folder `parent`, yields
    its path, and removes it after the block.
    """
    folder = own_folder(parent, _FOLDER)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _UploadReading:
    """The state of one uploaded form that Uploads is receiving: its temporary file, the number of bytes so far, and the
    error with which the request will be refused, if any.
    """

    # Where the file goes.
    path: Path
    target: IO[bytes]
    # Bytes received.
    size: int = 0
    # Whether there is more to receive.
    more: bool = True
    # None before the first byte, and once the body is refused.
    form: FormParser | None = None
    # Why it is refused.
    error: GenaiServerError | None = None
    # Size at which the time limit of the next MiB begins.
    due: int = field(default=_TIMED)

    def revoke(self, error: GenaiServerError) -> None:
        """Mark the request as one to refuse with `error`, and begin to free the disk space without waiting for the
        disk.
        """
        self.error, self.form = error, None
        asyncio.get_running_loop().run_in_executor(None, self._truncate)

    async def refuse(self, error: GenaiServerError) -> None:
        """Mark the request as one to refuse with `error`, and free the disk space."""
        self.error, self.form = error, None
        await asyncio.to_thread(self._truncate)

    def _truncate(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the disk is full, or the file is closed already
            self.target.truncate(0)


@dataclass(frozen=True)
class UploadLimits:
    """The limits of the forms for one kind of uploads: their maximum `size` in bytes, the setting that sets it, the
    `seconds` that each MiB may take to arrive, and the `whole_seconds` that a whole form may take.
    """

    size: int
    setting: str
    seconds: float
    whole_seconds: float


class Uploads:
    """Receives the forms for some paths, writes the file in each to the disk, and stores the form as an Upload in the
    request's state, where the route finds it. BodyLimits passes it the requests for `paths`.

    `folder` returns an existing folder for the files; it may raise an error with which the request is refused. `budget`
    counts the bytes of all uploads until they are released or their requests have ended.

    Browsers let any web page send a form to any server without a preflight request. Therefore requests from web pages
    of other origins are refused unless the page's origin is in `origins`.
    """

    def __init__(
        self,
        paths: Collection[str],
        origins: Collection[str],
        limits: UploadLimits,
        budget: BodyBudget,
        folder: Callable[[], Path],
    ) -> None:
        self.paths = frozenset(paths)
        self._origins = origins
        self._limits = limits
        self._budget = budget
        self._folder = folder

    async def pass_on(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive the form of a request, store it in the request's state and call `app` with an empty body; or answer
        with an error if the form cannot be used.
        """
        headers = Headers(scope=scope)
        if headers.get("sec-fetch-site") in _OTHER_ORIGIN and headers.get("origin") not in self._origins:
            await error_response(OriginForbidden(), scope)(scope, receive, send)
            return
        with contextlib.ExitStack() as stack:
            try:
                reading = stack.enter_context(self._reading())
            except (OSError, GenaiServerError) as error:
                reason = error if isinstance(error, GenaiServerError) else _unwritable(error)
                await error_response(reason, scope)(scope, receive, send)
                return
            state = request_state(scope)
            held_body = state.held_body = self._budget.open(state.key, reading.revoke)
            stack.callback(held_body.release)
            try:
                is_whole = await self._receive(reading, held_body, headers, receive)
            except BodyTooSlow as error:
                reading.error, is_whole = reading.error or error, True
            held_body.arrived()
            if reading.error is not None:
                response = error_response(reading.error, scope)
                if reading.more:
                    response.headers["connection"] = "close"
                await response(scope, receive, send)
            elif is_whole:
                await self._call(app, reading, scope, receive, send)

    async def _call(self, app: ASGIApp, reading: _UploadReading, scope: Scope, receive: Receive, send: Send) -> None:
        state = request_state(scope)
        state.record.arrival.received()
        assert reading.form is not None
        form = reading.form
        state.upload = Upload(form.fields, reading.path if form.has_file else None, form.file_name)
        await app(scope, replayed(b"", receive), send)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[_UploadReading]:
        """Context manager that creates a temporary file for an upload, and removes it after the block. Raises OSError,
        and the errors of `folder`.
        """
        file = tempfile.NamedTemporaryFile(dir=self._folder(), prefix="upload-", delete=False)  # noqa: SIM115
        reading = _UploadReading(Path(file.name), file.file)
        try:
            yield reading
        finally:
            with contextlib.suppress(OSError):  # the disk is full
                file.close()
            reading.path.unlink(missing_ok=True)  # unless a reader of recordings has taken it

    async def _receive(self, reading: _UploadReading, held_body: HeldBody, headers: Headers, receive: Receive) -> bool:
        """Receive the form until it is complete, or so far beyond the limit that the rest is not awaited. Return False
        if the client has disconnected, and True otherwise. Errors in the form are left in `reading`.

        Raises BodyTooSlow if a part of the form or the whole form does not arrive in time.
        """
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._limits.size:
            reading.error = self._too_large(declared)
            if headers.get("expect", "").lower() == "100-continue":
                return True  # the client waits for the decision
        seconds, loop = self._limits.seconds, asyncio.get_running_loop()
        end = loop.time() + self._limits.whole_seconds
        try:
            async with asyncio.timeout_at(min(loop.time() + seconds, end)) as timer:
                while reading.more and reading.size <= self._limits.size * _DRAINED_UPLOADS:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    part: bytes = message.get("body", b"")
                    reading.size += len(part)
                    reading.more = message.get("more_body", False)
                    if reading.size >= reading.due:
                        reading.due = reading.size + _TIMED
                        timer.reschedule(min(loop.time() + seconds, end))
                    if reading.error is None:
                        await self._take(reading, held_body, headers, part)
        except TimeoutError:
            raise self._too_slow(reading, is_whole=loop.time() >= end) from None
        return True

    async def _take(self, reading: _UploadReading, held_body: HeldBody, headers: Headers, part: bytes) -> None:
        """Parse `part`, the next bytes of the form, and write the bytes of the file in it to the disk. If that fails,
        the request is marked in `reading` as one to refuse.
        """
        try:
            if reading.size > self._limits.size:
                raise self._too_large(f"more than {reading.size}" if reading.more else str(reading.size))
            held_body.resize(reading.size)
            if reading.form is None:
                reading.form = FormParser(headers)
            form = reading.form
            form.feed(part)
            if len(form.pending) >= _WRITTEN or not reading.more:
                written, form.pending = form.pending, bytearray()
                await asyncio.to_thread(reading.target.write, written)
            if not reading.more:
                form.finish()
                await asyncio.to_thread(reading.target.flush)
        except (OSError, GenaiServerError) as error:
            held_body.release()
            await reading.refuse(error if isinstance(error, GenaiServerError) else _unwritable(error))

    def _too_large(self, size: str) -> BodyTooLarge:
        limits = self._limits
        return BodyTooLarge(f"the body may have at most {limits.size} bytes ({limits.setting}), given {size}")

    def _too_slow(self, reading: _UploadReading, *, is_whole: bool) -> BodyTooSlow:
        limit = f"each MiB of the body must come within {self._limits.seconds} seconds (GENAI_BODY_TIMEOUT)"
        if is_whole:
            limit = f"the body must come within {self._limits.whole_seconds} seconds (GENAI_UPLOAD_TIMEOUT)"
        return BodyTooSlow(f"{limit}; {reading.size} bytes had come by then")


def _unwritable(error: OSError) -> UploadUnavailable:
    return UploadUnavailable(f"the uploaded file cannot be written: {error.strerror or type(error).__name__}")
