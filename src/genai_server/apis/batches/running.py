"""Runs the batches of an API process in the background. A batch is a file of requests, which are answered with low
priority.

`Batches` decides which batches this process runs. A `BatchRun` takes one batch from the lines of its input file to the
files with its results. `Answering` sends the requests to the server's own ASGI app, and sends them again while the
server cannot accept them.

A file lock for each batch, which the operating system releases when its process ends, keeps two processes from running
the same batch. If the process ends, another process continues the batch: each step can be repeated, and the result
files show which requests have been answered.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope

from genai_server.apis.batches.results import Results
from genai_server.batch_files import BatchLine, InputCheck, LineError, LineReader, error_line, listed, response_line
from genai_server.errors import EngineDied, EngineHung, StoreUnavailable, in_one_line
from genai_server.generation.dependencies import Services
from genai_server.http.inner_request import InnerResponse, disconnect_at
from genai_server.http.json_response import JsonObject
from genai_server.http.middleware.body import replayed, upload_folder
from genai_server.http.request_state import OnBehalf, Receipt, request_state, with_receipt
from genai_server.messages.generation_request import FinishReason
from genai_server.model_files.pooling_model import Task
from genai_server.store.batches import NO_SPACE, BatchStore, StoredBatch
from genai_server.store.database import Database
from genai_server.store.files import FileLimits, FileStore, new_id

log = logging.getLogger(__name__)

# Seconds until the next attempt: at least, if the response asks for no longer pause, and at most.
_PAUSE = 1.0
_MAX_PAUSE = 30.0
# If the engine dies while it runs a request, the request may be the reason. It is sent again after a random number of
# seconds, so that it does not run next to the same requests again, and fails after this number of deaths.
_MAX_DEATHS = 3
_DEATH_PAUSE = (1.0, 10.0)
_DEATH_CODES = (EngineDied.code, EngineHung.code)
_UNAVAILABLE = 503


@dataclass(frozen=True)
class Answered:
    """The server's response to one request of a batch: HTTP status, request id and JSON body."""

    status: int
    request_id: str
    # JSON.
    body: bytes


class Stop:
    """The order to stop running one batch, with its reason, such as "expired" or "cancelled". Each BatchRun, the object
    that runs a batch, creates one. Once the order is given, no further requests of the batch are sent, and requests
    that are being answered are cancelled.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        # Why; empty while it runs.
        self.reason = ""

    def __call__(self, reason: str) -> None:
        """Order the batch to stop, for the reason `reason`. If the stop has already been ordered, the first reason is
        kept.
        """
        self.reason = self.reason or reason
        self.event.set()

    def is_set(self) -> bool:
        """Return whether the stop of the batch has been ordered."""
        return self.event.is_set()

    async def within(self, seconds: float) -> bool:
        """Wait until the stop of the batch is ordered, but at most `seconds` seconds. Returns whether it has been
        ordered.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.event.wait()
        return self.event.is_set()


class Answering:
    """Sends the requests of batches to the server's ASGI app and waits for the responses. All batches of an API process
    share one such object, which sends at most `max_running` requests at a time.
    """

    def __init__(
        self, app: ASGIApp, max_running: int, is_draining: Callable[[], bool], count: Callable[[str], None]
    ) -> None:
        self.max_running = max_running
        self._app = app
        self._slots = asyncio.Semaphore(max_running)
        self.is_draining = is_draining
        # Counts a request that is `completed`, `failed` or `retried`.
        self.count = count

    async def answer(self, line: BatchLine, on_behalf: OnBehalf, stop: Stop) -> Answered | None:
        """Send one line of a batch's input file to the server's ASGI app as a request, and return the response, whether
        it is an answer or an error. Returns None if `stop` is ordered before the response is complete.

        `on_behalf` has the API key for which the batch runs, and the time limit of the request. The request is sent
        again while the server is busy, loads a model or is about to stop. It is also sent again, a few times, if its
        engine dies, because other requests may have been the cause.
        """
        deaths = 0
        while not stop.is_set():
            async with self._slots:
                if stop.is_set():
                    return None
                scope, response = await self._send(line, on_behalf, stop)
            if stop.is_set() and response.status != 200:
                return None
            record = request_state(scope).record
            died = record.error_code in _DEATH_CODES
            deaths += died
            is_partial = any(answer.outcome == FinishReason.TERMINATED for answer in record.answers)
            is_refused = response.status == _UNAVAILABLE or (response.status >= 400 and self.is_draining())
            if not (is_refused or is_partial or (died and deaths < _MAX_DEATHS)):
                return Answered(response.status, record.unique_id, response.body)
            self.count("retried")
            await stop.within(random.uniform(*_DEATH_PAUSE) if died else _pause(response))
        return None

    async def _send(self, line: BatchLine, on_behalf: OnBehalf, stop: Stop) -> tuple[Scope, InnerResponse]:
        scope, response = _scope(line, on_behalf), InnerResponse()
        try:
            await self._app(scope, replayed(line.body, disconnect_at(stop.event)), response.send)
        except Exception:
            log.exception("internal error in a request of a batch")
        response.status = response.status or 500
        return scope, response


def _pause(response: InnerResponse) -> float:
    retry_after = Headers(raw=response.headers).get("retry-after", "")
    seconds = float(retry_after) if retry_after.isdecimal() else _PAUSE
    return min(max(seconds, _PAUSE), _MAX_PAUSE) * random.uniform(1.0, 1.25)


def _scope(line: BatchLine, on_behalf: OnBehalf) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": line.url,
        "raw_path": line.url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(line.body)).encode())],
        "client": None,
        "server": None,
        "extensions": {},
        "state": with_receipt(Receipt(is_counted=True, on_behalf=on_behalf)),
    }


# Seconds between two checks of the state, which another process may have changed.
_CHECK_SECONDS = 1.0
# Seconds that requests have beyond the end of the batch, so that none ends with part of its answer.
_REQUEST_GRACE_SECONDS = 60
# How requests that were not answered end.
_UNANSWERED_ERRORS = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
}
# The reason for which a process leaves a batch to another one, or to its next start.
STOPPING = "stopping"


@dataclass(frozen=True)
class BatchLimits:
    """The limits that the server sets for each batch: the maximum number of requests, the maximum size of a request's
    body in bytes, and a check that refuses models that are not served or that the batch's endpoint cannot use.
    """

    max_requests: int
    # Gives the maximum size of a request's body in bytes.
    max_body: Callable[[], int]
    # Raises an error for a model that is not served, or that is not for this endpoint.
    check_model: Callable[[str | None, str], object]


class BatchRun:
    """Runs one batch to its end: checks the input file, answers its requests and writes the result files. `Batches`,
    the object that starts batches, creates one BatchRun for each batch while it holds the batch's file lock, so that no
    other process runs the batch at the same time. Calling the attribute `stop` with a reason stops the run.
    """

    def __init__(
        self, batch: StoredBatch, store: BatchStore, files: FileStore, answering: Answering, limits: BatchLimits
    ) -> None:
        self.stop = Stop()
        self._batch = batch
        self._store = store
        self._files = files
        self._answering = answering
        self._limits = limits
        self._results: Results | None = None
        self._has_room = True

    async def run(self) -> str | None:
        """Run the batch until it ends or is stopped.

        Returns the status with which the batch has ended, such as "completed"; None if another process has ended the
        batch, or if this process stops and leaves it to be continued. Raises StoreUnavailable if the batch's state
        cannot be stored, and OSError if a file cannot be read or written.
        """
        batch = self._batch
        value = await self._store.reread(batch)
        if value is None:
            return None  # another process has just ended it
        results = self._results = await Results.open(
            self._files.content(batch.output), self._files.content(batch.errors)
        )
        watching = asyncio.ensure_future(self._watch(value))
        try:
            if value["status"] == "validating":
                errors = await self._validate()
                if errors and not self.stop.is_set():
                    return await self._end("failed", errors=listed(errors))
            await self._answer_all(results)
            if self.stop.reason == STOPPING:
                return None
            watching.cancel()
            if self.stop.reason:
                await self._give_up(results, *_UNANSWERED_ERRORS[self.stop.reason])
            return await self._end(self.stop.reason or "completed")
        except FileNotFoundError:  # somebody has removed the input's content
            watching.cancel()
            error = LineError(None, "file_not_found", "the content of the input file is missing")
            return await self._end("failed", errors=listed([error]))
        finally:
            watching.cancel()
            await results.close()

    async def _watch(self, value: JsonObject) -> None:
        """Store the number of answered requests once per second, and order the batch to stop when it expires or when a
        client has cancelled it. Runs until its task is cancelled.

        `value` is the batch object as it was stored when the run began. If a client had already cancelled the batch by
        then, the stop is ordered at once.
        """
        is_logged = False
        while True:
            if time.time() >= self._batch.expires:
                self.stop("expired")
            if value["status"] == "cancelling":
                self.stop("cancelled")
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                value = await self._update()
                is_logged = False
            except StoreUnavailable as error:
                if not is_logged:
                    log.warning("the progress of %s is not stored: %s", self._batch.id, error.message)
                is_logged = True

    async def _update(self, change: Callable[[JsonObject], None] = lambda value: None) -> JsonObject:
        assert self._results is not None
        (completed, failed), usage = self._results.counts, self._results.usage

        def changed(value: JsonObject) -> None:
            value["request_counts"] |= {"completed": completed, "failed": failed}
            value["usage"] = usage
            change(value)

        value, limit = await self._store.update(self._batch, changed, self._results.sizes)
        if self._has_room and limit:
            log.warning("%s waits: %s", self._batch.id, NO_SPACE % limit)
        self._has_room = not limit
        return value

    async def _lines(self) -> AsyncGenerator[list[BatchLine | LineError]]:
        """Read the input file and yield its lines, several at a time. Each line is a request, or the error in it.
        Raises FileNotFoundError if the file is missing.
        """
        path, max_body = self._files.content(self._batch.input), self._limits.max_body()
        with closing(await asyncio.to_thread(LineReader, path, max_body, self._batch.endpoint)) as reader:
            while (part := await asyncio.to_thread(reader.read)) is not None:
                yield part

    async def _validate(self) -> list[LineError]:
        """Check the input file and return its errors. If there are none, the batch's status becomes `in_progress`,
        unless the batch has been stopped meanwhile.
        """
        endpoint = self._batch.endpoint
        check = InputCheck(self._limits.max_requests, lambda model: self._limits.check_model(model, endpoint))
        async with aclosing(self._lines()) as parts:
            async for part in parts:
                check.add(part)
                if check.is_decided or self.stop.is_set():
                    break
        errors = check.errors()
        if errors or self.stop.is_set():
            return errors

        def start(value: JsonObject) -> None:
            value["request_counts"]["total"] = check.num_requests
            value["in_progress_at"] = int(time.time())
            if value["status"] == "validating":  # not if it is cancelled now
                value["status"] = "in_progress"

        await self._update(start)
        return []

    async def _answer_all(self, results: Results) -> None:
        """Answer all requests of the input file that have no result yet and write their results. Returns early when the
        batch is stopped, and pauses while the storage is full.
        """
        answering: set[asyncio.Task[None]] = set()
        try:
            async with aclosing(self._lines()) as parts:
                async for part in parts:
                    for line in part:
                        if self.stop.is_set():
                            return
                        if isinstance(line, LineError) or results.has(line.custom_id):
                            continue
                        while not self._has_room and not await self.stop.within(_CHECK_SECONDS):
                            pass
                        while len(answering) >= self._answering.max_running:
                            await asyncio.wait(answering, return_when=asyncio.FIRST_COMPLETED)
                        task = asyncio.create_task(self._answer(line, results))
                        answering.add(task)
                        task.add_done_callback(answering.discard)
        finally:
            if answering:
                await asyncio.wait(answering)

    async def _answer(self, line: BatchLine, results: Results) -> None:
        id, custom_id = new_id("batch_req"), line.custom_id
        seconds = math.ceil(self._batch.expires - time.time()) + _REQUEST_GRACE_SECONDS
        on_behalf = OnBehalf(self._batch.owner or None, max(1, seconds))
        answered = await self._answering.answer(line, on_behalf, self.stop)
        if answered is None:
            return
        succeeded = answered.status < 400
        try:
            result = response_line(id, custom_id, answered.status, answered.request_id, answered.body)
        except ValueError:  # msgspec's are, too
            log.exception("a request of a batch was not answered with JSON")
            result, succeeded = error_line(id, custom_id, "server_error", "internal error; see the server log"), False
        await results.add([(custom_id, result)], succeeded=succeeded)
        self._answering.count("completed" if succeeded else "failed")

    async def _give_up(self, results: Results, code: str, message: str) -> None:
        """Write an error as the result of each request that has no result, because the batch has expired or was
        cancelled. `code` and `message` are those of the error.
        """
        value = await self._store.reread(self._batch)
        if value is None or not value["request_counts"]["total"]:
            return  # the input has not been validated, and need not have custom ids
        async with aclosing(self._lines()) as parts:
            async for part in parts:
                ids = [line.custom_id for line in part if isinstance(line, BatchLine)]
                lines = [(id, error_line(new_id("batch_req"), id, code, message)) for id in ids if not results.has(id)]
                await results.add(lines, succeeded=False)
                for _ in lines:
                    self._answering.count("failed")

    async def _end(self, status: str, **changes: object) -> str:
        """Close the result files, and store that the batch has ended with the status `status`; `changes` are new values
        of other fields of the batch. Returns the status. Until a completed batch is stored, its status is `finalizing`.
        """
        assert self._results is not None
        if status == "completed":

            def finalize(value: JsonObject) -> None:
                value |= {"status": "finalizing", "finalizing_at": int(time.time())}

            await self._update(finalize)
        else:
            with suppress(StoreUnavailable):
                await self._update()
        sizes = self._results.sizes
        await self._results.close()
        await self._store.end(self._batch, {"status": status, f"{status}_at": int(time.time()), **changes}, sizes)
        return status


# Batches that a process runs at once. Each owner has one in all processes, so that every owner's begins soon.
_MAX_RUNNING = 16
# Seconds between two checks for batches that no process runs, and between two removals of expired files.
_CLEAN_SECONDS = 600.0
# Seconds after which a batch that met an internal error is run again.
_RETRY_SECONDS = 10.0


class Batches:
    """Decides which batches this API process runs, and runs them in the background: at most one for each owner (an API
    key), and none that another process of the server runs. Each API process has one such object; `files_and_batches`
    creates it. It may be used in the event loop only.
    """

    def __init__(
        self, files: FileStore, answering: Answering, limits: BatchLimits, count: Callable[[str], None]
    ) -> None:
        self.store = BatchStore(files)
        self.files = files
        self._answering = answering
        self._limits = limits
        # Counts a batch that has ended, by its state.
        self._count = count
        # Keyed by owner.
        self._running: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._cleaned = float("-inf")

    def wake(self) -> None:
        """Look for batches to start now instead of at the next interval. Called when a batch has been created or has
        ended.
        """
        self._wake.set()

    async def run(self) -> None:
        """Start and run batches until this task is cancelled. Batches that are running at that time are continued by
        another process, or after the next start of the server.
        """
        is_logged = False
        try:
            while True:
                try:
                    await self._start_batches()
                    is_logged = False
                except (StoreUnavailable, OSError) as error:
                    if not is_logged:
                        log.warning("no batch can begin: %s", in_one_line(error))
                    is_logged = True
                except Exception:
                    log.exception("starting batches")
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_SECONDS):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            await self._stop()

    async def _start_batches(self) -> None:
        """For each owner (an API key) that has no running batch, start the oldest batch, unless another process runs
        it. From time to time, also remove expired files.
        """
        if time.monotonic() - self._cleaned >= _CLEAN_SECONDS:
            self._cleaned = time.monotonic()
            await self.files.remove_expired()
        if self._answering.is_draining():
            return
        owners = set(self._running)
        for batch in await self.store.open():
            if len(self._running) >= _MAX_RUNNING:
                return
            if batch.owner in owners:
                continue
            owners.add(batch.owner)
            lock = FileLock(self.files.locks / batch.id, mode=0o600, thread_local=False)
            try:
                await asyncio.to_thread(partial(lock.acquire, timeout=0))
            except Timeout:
                continue
            run = BatchRun(batch, self.store, self.files, self._answering, self._limits)
            self._running[batch.owner] = (run, asyncio.create_task(self._run(batch, run, lock)))

    async def _run(self, batch: StoredBatch, run: BatchRun, lock: FileLock) -> None:
        ended: str | None = None
        try:
            ended = await run.run()
            if ended is not None:
                self._count(ended)
                log.info("%s is %s", batch.id, ended)
        except (StoreUnavailable, OSError) as error:
            log.warning("%s is run again in %g s: %s", batch.id, _RETRY_SECONDS, in_one_line(error))
            await run.stop.within(_RETRY_SECONDS)
        except Exception:
            log.exception("%s met an internal error, and is run again in %g s", batch.id, _RETRY_SECONDS)
            await run.stop.within(_RETRY_SECONDS)
        finally:
            if ended is not None:
                with suppress(OSError):
                    (self.files.locks / batch.id).unlink(missing_ok=True)
            lock.release()
            del self._running[batch.owner]
            self.wake()

    async def _stop(self) -> None:
        tasks = []
        for run, task in self._running.values():
            run.stop(STOPPING)
            tasks.append(task)
        if tasks:
            _, hanging = await asyncio.wait(tasks, timeout=_RETRY_SECONDS)
            for task in hanging:  # its disk is full, or hangs
                task.cancel()


@asynccontextmanager
async def files_and_batches(
    app: ASGIApp,
    services: Services,
    database: Database,
    max_body: Callable[[], int],
    count_batch: Callable[[str], None],
    count_request: Callable[[str], None],
) -> AsyncIterator[Batches | None]:
    """Run batches in the background while the block of this context manager runs, and yield the object that runs them;
    None if files and batches are disabled.

    Requests of batches are sent to `app`. `database` stores files and batches; `max_body` returns the maximum size of a
    request's body in bytes. `count_batch` is called with the status of each batch that ends, and `count_request` with
    the outcome of each request: `completed`, `failed` or `retried`. Raises OSError if the folder for files cannot be
    created.
    """
    settings, drain = services.settings, services.drain
    if not settings.files_dir:
        yield None
        return
    limits_of_files = FileLimits(settings.files_bytes_per_key, settings.files_bytes)
    files = FileStore(database, Path(settings.files_dir), limits_of_files)

    def check_model(model: str | None, endpoint: str) -> object:
        return services.models.choose_for(model, Task.EMBED if endpoint.endswith("/embeddings") else Task.GENERATE)

    limits = BatchLimits(settings.max_batch_requests, max_body, check_model)
    max_running = settings.max_batch_size * len(settings.devices)
    answering = Answering(app, max_running, lambda: drain.is_draining, count_request)
    batches = Batches(files, answering, limits, count_batch)
    with upload_folder(files.uploads) as files.own_uploads:
        running = asyncio.create_task(batches.run())
        try:
            yield batches
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
