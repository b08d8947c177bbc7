"""Files and batches of an app, from its settings: kept while the app runs, if GENAI_FILES_DIR names a folder."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.types import ASGIApp

from genai_server.apis.batches.answering import Answering
from genai_server.apis.batches.batch_run import BatchLimits
from genai_server.apis.batches.running import Batches
from genai_server.apis.files.store import FileLimits, FileStore
from genai_server.generation.dependencies import Services
from genai_server.http.middleware.uploads import upload_folder
from genai_server.pooling_model import Task


@asynccontextmanager
async def files_and_batches(
    app: ASGIApp,
    services: Services,
    max_body: Callable[[], int],
    count_batch: Callable[[str], None],
    count_request: Callable[[str], None],
) -> AsyncIterator[Batches | None]:
    """Batches and their files while the block runs; None if they are disabled. Raises OSError.

    `count_batch` counts a batch that has ended by its state, `count_request` a request that is `completed`, `failed` or
    `retried`.
    """
    settings, drain = services.settings, services.drain
    if not settings.files_dir:
        yield None
        return
    files = FileStore(Path(settings.files_dir), FileLimits(settings.files_bytes_per_key, settings.files_bytes))

    def check_model(model: str | None, endpoint: str) -> object:
        return services.models.choose_for(model, Task.EMBED if endpoint.endswith("/embeddings") else Task.GENERATE)

    limits = BatchLimits(settings.max_batch_requests, max_body, check_model)
    max_running = settings.max_batch_size * len(settings.devices)
    answering = Answering(app, max_running, lambda: drain.is_draining, count_request)
    batches = Batches(files, answering, limits, lambda: drain.is_draining, count_batch)
    with upload_folder(files.uploads) as files.own_uploads:
        running = asyncio.create_task(batches.run())
        try:
            yield batches
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await files.close()
