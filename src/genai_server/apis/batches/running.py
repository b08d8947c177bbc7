"""Decides which batches this process runs. A file lock for each batch, which the operating system releases when its
process ends, keeps two processes from running the same batch.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout
from starlette.types import ASGIApp

from genai_server.apis.batches.answering import Answering
from genai_server.apis.batches.batch_run import STOPPING, BatchLimits, BatchRun
from genai_server.errors import StoreUnavailable, in_one_line
from genai_server.generation.dependencies import Services
from genai_server.http.middleware.uploads import upload_folder
from genai_server.model_files.pooling_model import Task
from genai_server.store.batches import BatchStore, StoredBatch
from genai_server.store.database import Database
from genai_server.store.files import FileLimits, FileStore

log = logging.getLogger(__name__)

# Batches that a process runs at once. Each owner has one in all processes, so that every owner's begins soon.
_MAX_RUNNING = 16
# Seconds between two checks for batches that no process runs, and between two removals of expired files.
_CHECK_SECONDS = 1.0
_CLEAN_SECONDS = 600.0
# Seconds after which a batch that met an internal error is run again.
_PAUSE = 10.0


class Batches:
    """Runs the batches that no other process of the server runs. Each API process has one such object. For use in the
    event loop only.
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
        """Start new batches now instead of at the next interval. Called when a batch has been created or has ended."""
        self._wake.set()

    async def run(self) -> None:
        """Run batches until cancelled. Batches that are running at that time are continued after the next start."""
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
        """Start the oldest batch of each owner (an API key) that has none running, unless another process runs it. From
        time to time, remove expired files, too.
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
            log.warning("%s is run again in %g s: %s", batch.id, _PAUSE, in_one_line(error))
            await run.stop.within(_PAUSE)
        except Exception:
            log.exception("%s met an internal error, and is run again in %g s", batch.id, _PAUSE)
            await run.stop.within(_PAUSE)
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
            _, hanging = await asyncio.wait(tasks, timeout=_PAUSE)
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
    """Run batches in the background while the block runs, and yield the object that does it; None if files and batches
    are disabled.

    Requests of batches are sent to `app`, with bodies of at most the number of bytes that `max_body` returns.
    `count_batch` is called with the status of each batch that ends, and `count_request` with the outcome of each
    request: `completed`, `failed` or `retried`. Raises OSError if the folder for files cannot be created.
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
