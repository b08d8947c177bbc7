"""Receives forms with a file before their route is called, within limits. Files are written to disk, not kept in
memory.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from genai_server.errors import BodyTooLarge, BodyTooSlow, GenaiServerError, OriginForbidden, UploadUnavailable
from genai_server.http.body_budget import BodyBudget, HeldBody
from genai_server.http.error_responses import error_response
from genai_server.http.middleware.body import replayed
from genai_server.http.request_state import request_state
from genai_server.http.upload import FormParser, Upload
from genai_server.system.processes import own_folder

# Values of Sec-Fetch-Site, which browsers set and no web page can change.
_OTHER_ORIGIN = ("cross-site", "same-site")
# Name of the folder in the engines' folder.
_FOLDER = "uploads"
# Bytes that are written at once, and those that must arrive within the time limit.
_WRITTEN = 256 * 1024
_TIMED = 1024 * 1024
# A refused body is read on, and dropped, up to this many times the limit: a client that is still sending when the
# connection is closed may never see the response.
_DRAINED = 2


@contextlib.contextmanager
def upload_folder(parent: Path) -> Iterator[Path]:
    """Create a folder for the uploaded files of this process, and remove it after the block."""
    folder = own_folder(parent, _FOLDER)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Reading:
    """The state of an uploaded form that is being received, such as its file and the number of bytes so far."""

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
        """Refuse the request with this error, and free the disk space at once. Does not wait for the disk."""
        self.error, self.form = error, None
        asyncio.get_running_loop().run_in_executor(None, self._truncate)

    async def refuse(self, error: GenaiServerError) -> None:
        """Refuse the request with this error, and free the disk space."""
        self.error, self.form = error, None
        await asyncio.to_thread(self._truncate)

    def _truncate(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the disk is full, or the file is closed already
            self.target.truncate(0)


@dataclass(frozen=True)
class UploadLimits:
    """The limits of the forms for one path: their maximum `size` in bytes, the setting that sets it, the `seconds` that
    each MiB may take to arrive, and the `whole_seconds` that a form may take.
    """

    size: int
    setting: str
    seconds: float
    whole_seconds: float


class Uploads:
    """Receives the forms for some paths, writes the file in each to the disk, and stores the form as an Upload in the
    request's state.

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
        """Receive the form and call the app with an empty body, or refuse the request if the form cannot be used."""
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
            held = state.held_body = self._budget.open(state.key, reading.revoke)
            stack.callback(held.release)
            try:
                is_whole = await self._receive(reading, held, headers, receive)
            except BodyTooSlow as error:
                reading.error, is_whole = reading.error or error, True
            held.arrived()
            if reading.error is not None:
                response = error_response(reading.error, scope)
                if reading.more:
                    response.headers["connection"] = "close"
                await response(scope, receive, send)
            elif is_whole:
                await self._call(app, reading, scope, receive, send)

    async def _call(self, app: ASGIApp, reading: _Reading, scope: Scope, receive: Receive, send: Send) -> None:
        state = request_state(scope)
        state.record.arrival.received()
        assert reading.form is not None
        form = reading.form
        state.upload = Upload(form.fields, reading.path if form.has_file else None, form.file_name)
        await app(scope, replayed(b"", receive), send)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[_Reading]:
        """Create a temporary file for an upload, and remove it after the block. Raises OSError."""
        file = tempfile.NamedTemporaryFile(dir=self._folder(), prefix="upload-", delete=False)  # noqa: SIM115
        reading = _Reading(Path(file.name), file.file)
        try:
            yield reading
        finally:
            with contextlib.suppress(OSError):  # the disk is full
                file.close()
            reading.path.unlink(missing_ok=True)  # unless a reader of recordings has taken it

    async def _receive(self, reading: _Reading, held: HeldBody, headers: Headers, receive: Receive) -> bool:
        """Receive the form until it is complete or far larger than the limit. Returns False if the client has
        disconnected.

        Raises BodyTooSlow.
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
                while reading.more and reading.size <= self._limits.size * _DRAINED:
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
                        await self._take(reading, held, headers, part)
        except TimeoutError:
            raise self._too_slow(reading, is_whole=loop.time() >= end) from None
        return True

    async def _take(self, reading: _Reading, held: HeldBody, headers: Headers, part: bytes) -> None:
        """Parse the next part of the form, and write the bytes of the file to the disk. If that fails, the request is
        marked as refused.
        """
        try:
            if reading.size > self._limits.size:
                raise self._too_large(f"more than {reading.size}" if reading.more else str(reading.size))
            held.resize(reading.size)
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
            held.release()
            await reading.refuse(error if isinstance(error, GenaiServerError) else _unwritable(error))

    def _too_large(self, given: str) -> BodyTooLarge:
        limits = self._limits
        return BodyTooLarge(f"the body may have at most {limits.size} bytes ({limits.setting}), given {given}")

    def _too_slow(self, reading: _Reading, *, is_whole: bool) -> BodyTooSlow:
        limit = f"each MiB of the body must come within {self._limits.seconds} seconds (GENAI_BODY_TIMEOUT)"
        if is_whole:
            limit = f"the body must come within {self._limits.whole_seconds} seconds (GENAI_UPLOAD_TIMEOUT)"
        return BodyTooSlow(f"{limit}; {reading.size} bytes had come by then")


def _unwritable(error: OSError) -> UploadUnavailable:
    return UploadUnavailable(f"the uploaded file cannot be written: {error.strerror or type(error).__name__}")
