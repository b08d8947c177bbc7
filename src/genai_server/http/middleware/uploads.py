"""Bodies with a file: received before their route, within limits, into files instead of memory."""

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
from genai_server.http.error_responses import error_response
from genai_server.http.middleware.body import BodyBudget, replayed
from genai_server.http.request_state import request_state
from genai_server.http.upload import FormParser, Upload
from genai_server.process_folder import own_folder

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
    """A folder for the files of this process while the block runs."""
    folder = own_folder(parent, _FOLDER)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Reading:
    """A body while it is received."""

    # Where the file goes.
    path: Path
    target: IO[bytes]
    # Bytes received, and those that count towards the limit of all uploads.
    size: int = 0
    counted: int = 0
    # Whether there is more to receive.
    more: bool = True
    # None before the first byte, and once the body is refused.
    form: FormParser | None = None
    # Why it is refused.
    error: GenaiServerError | None = None
    # Sizes up to which the time limit holds.
    due: int = field(default=_TIMED)


class Uploads:
    """Receives the bodies of requests for some paths, and leaves an Upload in the request's state.

    `limit` is the maximum size of one body, and `setting` has it. `folder` gives the folder for the files, which
    exists; it may raise an error that refuses the request. `budget` counts the bytes of all uploads, from their first
    bytes until their requests have ended. Each MiB must arrive within `seconds`.

    Browsers let any web page send a form to any server without a preflight request. So pages of other origins must be
    among `origins`.
    """

    def __init__(
        self,
        paths: Collection[str],
        origins: Collection[str],
        limit: int,
        setting: str,
        seconds: float,
        budget: BodyBudget,
        folder: Callable[[], Path],
    ) -> None:
        self.paths = frozenset(paths)
        self._origins = origins
        # Maximum number of bytes of one body.
        self._limit = limit
        self._setting = setting
        self._seconds = seconds
        self._budget = budget
        self._folder = folder

    async def pass_on(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive the body, and call the app with an empty one; refuses the request if the body cannot be used."""
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
            try:
                is_whole = await self._receive(reading, headers, receive)
            except BodyTooSlow as error:
                reading.error, is_whole = error, True
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
        """A new file. Raises OSError."""
        file = tempfile.NamedTemporaryFile(dir=self._folder(), prefix="upload-", delete=False)  # noqa: SIM115
        reading = _Reading(Path(file.name), file.file)
        try:
            yield reading
        finally:
            with contextlib.suppress(OSError):  # the disk is full
                file.close()
            reading.path.unlink(missing_ok=True)  # unless a reader of recordings has taken it
            self._budget.resize(reading.counted, 0)

    async def _receive(self, reading: _Reading, headers: Headers, receive: Receive) -> bool:
        """Read to the end, or far beyond the limit; returns whether the client is still there. Raises BodyTooSlow."""
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._limit:
            reading.error = self._too_large(declared)
            if headers.get("expect", "").lower() == "100-continue":
                return True  # the client waits for the decision
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds) as timer:
                while reading.more and reading.size <= self._limit * _DRAINED:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    part: bytes = message.get("body", b"")
                    reading.size += len(part)
                    reading.more = message.get("more_body", False)
                    if reading.size >= reading.due:
                        reading.due = reading.size + _TIMED
                        timer.reschedule(loop.time() + self._seconds)
                    if reading.error is None:
                        await self._take(reading, headers, part)
        except TimeoutError:
            raise BodyTooSlow(
                f"each MiB of the body must come within {self._seconds} seconds (GENAI_BODY_TIMEOUT); "
                f"{reading.size} bytes had come by then"
            ) from None
        return True

    async def _take(self, reading: _Reading, headers: Headers, part: bytes) -> None:
        """Parse and write a part, or refuse the body."""
        try:
            if reading.size > self._limit:
                raise self._too_large(f"more than {reading.size}" if reading.more else str(reading.size))
            self._budget.resize(reading.counted, reading.size)
            reading.counted = reading.size
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
        except OSError as error:
            reading.error = _unwritable(error)
        except GenaiServerError as error:
            reading.error = error
        if reading.error is not None:
            reading.form = None
            with contextlib.suppress(OSError):  # the disk is full
                await asyncio.to_thread(reading.target.truncate, 0)

    def _too_large(self, given: str) -> BodyTooLarge:
        return BodyTooLarge(f"the body may have at most {self._limit} bytes ({self._setting}), given {given}")


def _unwritable(error: OSError) -> UploadUnavailable:
    return UploadUnavailable(f"the uploaded file cannot be written: {error.strerror or type(error).__name__}")
