"""Runs one batch in this process, from the lines of its input file to the files with the results.

If the process ends, another process continues the batch: each step can be repeated, and the result files show which
requests have been answered.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass

from genai_server.apis.batches.answering import Answering, Stop
from genai_server.apis.batches.results import Results
from genai_server.batch_files.batch_lines import (
    BatchLine,
    InputCheck,
    LineError,
    LineReader,
    error_line,
    listed,
    response_line,
)
from genai_server.errors import StoreUnavailable
from genai_server.http.json_response import JsonObject
from genai_server.http.request_state import OnBehalf
from genai_server.store.batches import NO_SPACE, BatchStore, StoredBatch
from genai_server.store.files import FileStore, new_id

log = logging.getLogger(__name__)

# Seconds between two checks of the state, which another process may have changed.
_CHECK_SECONDS = 1.0
# Seconds that requests have beyond the end of the batch, so that none ends with part of its answer.
_BEYOND = 60
# How requests that were not answered end.
_UNANSWERED = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
}
# The reason for which a process leaves a batch to another one, or to its next start.
STOPPING = "stopping"


@dataclass(frozen=True)
class BatchLimits:
    """The limits that the server sets for each batch."""

    max_requests: int
    # Gives the maximum size of a request's body in bytes.
    max_body: Callable[[], int]
    # Raises an error for a model that is not served, or that is not for this endpoint.
    check_model: Callable[[str | None, str], object]


class BatchRun:
    """Runs one batch to its end: checks the input file, answers its requests and writes the result files. The caller
    holds the batch's file lock, so that no other process runs it at the same time.
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

        Returns the status with which the batch has ended; None if another process has ended it or may continue it.
        Raises StoreUnavailable, and OSError if a file cannot be read or written.
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
                await self._give_up(results, *_UNANSWERED[self.stop.reason])
            return await self._end(self.stop.reason or "completed")
        except FileNotFoundError:  # somebody has removed the input's content
            watching.cancel()
            error = LineError(None, "file_not_found", "the content of the input file is missing")
            return await self._end("failed", errors=listed([error]))
        finally:
            watching.cancel()
            await results.close()

    async def _watch(self, value: JsonObject) -> None:
        """Store the number of answered requests at regular intervals, and stop the batch when it expires or a client
        has cancelled it. Runs until its task is cancelled.

        `value` is the batch object as it was stored at the beginning. If a client had already cancelled the batch then,
        it is stopped at once.
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
        """The lines of the input file, several at a time, each as a request or as the error that the line has. Raises
        FileNotFoundError.
        """
        path, max_body = self._files.content(self._batch.input), self._limits.max_body()
        with closing(await asyncio.to_thread(LineReader, path, max_body, self._batch.endpoint)) as reader:
            while (part := await asyncio.to_thread(reader.read)) is not None:
                yield part

    async def _validate(self) -> list[LineError]:
        """Check the input file and return the errors. If there are none, the status becomes `in_progress`, unless the
        batch was stopped.
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

        def begin(value: JsonObject) -> None:
            value["request_counts"]["total"] = check.num_requests
            value["in_progress_at"] = int(time.time())
            if value["status"] == "validating":  # not if it is cancelled now
                value["status"] = "in_progress"

        await self._update(begin)
        return []

    async def _answer_all(self, results: Results) -> None:
        """Answer all requests that have no result yet, until the batch is stopped."""
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
        seconds = math.ceil(self._batch.expires - time.time()) + _BEYOND
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
        """Write an error with this code and message as the result of each request that has none."""
        value = await self._store.reread(self._batch)
        if value is None or not value["request_counts"]["total"]:
            return  # the input has not been validated, and need not have custom ids
        async with aclosing(self._lines()) as parts:
            async for part in parts:
                rest = [line.custom_id for line in part if isinstance(line, BatchLine)]
                lines = [(id, error_line(new_id("batch_req"), id, code, message)) for id in rest if not results.has(id)]
                await results.add(lines, succeeded=False)
                for _ in lines:
                    self._answering.count("failed")

    async def _end(self, status: str, **changes: object) -> str:
        """Close the result files, and store that the batch has ended with this status and with `changes` of its other
        fields; returns the status.

        Until a completed batch is stored, its status is `finalizing`.
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
