"""OpenAI's /v1/batches: requests in a file, which are answered with low priority."""

import time
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from genai_server.apis.batches.running import Batches
from genai_server.apis.batches.schemas import WINDOWS, Batch, BatchList, BatchListParameters, BatchRequest
from genai_server.apis.files.routes import FilesDep
from genai_server.apis.files.schemas import MAX_SECONDS, page_json
from genai_server.apis.shared.router import VersionedRouter
from genai_server.http.body_route import BodyRoute
from genai_server.store.batches import StoredBatch
from genai_server.store.files import new_id

PATH = "/v1/batches"
router = VersionedRouter(BodyRoute, "openai", codes=(429,))
_TIMES = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at"),
)


async def the_batches(request: Request, files: FilesDep) -> Batches:
    """The object that runs the app's batches. A FastAPI dependency of the routes. Raises UnsupportedEndpoint if
    GENAI_FILES_DIR is not set.
    """
    found: Batches = request.app.state.batches
    return found


# The type of a route's parameter.
BatchesDep = Annotated[Batches, Depends(the_batches)]


@router.post(PATH, response_model=Batch)
async def create_batch(body: BatchRequest, files: FilesDep, batches: BatchesDep) -> dict[str, Any]:
    """Create a batch from the requests in an uploaded file."""
    batch = new_batch(body, files.owner)
    await batches.store.create(batch)
    batches.wake()
    return batch.value


@router.get(PATH, response_model=BatchList)
async def list_batches(
    query: Annotated[BatchListParameters, Query()], files: FilesDep, batches: BatchesDep
) -> dict[str, Any]:
    """List the caller's batches page by page, newest first."""
    found, has_more = await batches.store.page(files.owner, after=query.after, limit=query.limit)
    return page_json(found, has_more=has_more)


@router.get(PATH + "/{batch_id}", response_model=Batch)
async def get_batch(batch_id: str, files: FilesDep, batches: BatchesDep) -> dict[str, Any]:
    """Get the current state of a batch."""
    return await batches.store.get(batch_id, files.owner)


@router.post(PATH + "/{batch_id}/cancel", response_model=Batch)
async def cancel_batch(batch_id: str, files: FilesDep, batches: BatchesDep) -> dict[str, Any]:
    """Cancel a batch. The results written so far are kept."""
    return await batches.store.cancel(batch_id, files.owner)


def new_batch(body: BatchRequest, owner: str) -> StoredBatch:
    """The batch that a request describes. It has not been stored yet."""
    now, id = int(time.time()), new_id("batch")
    value = {
        "id": id,
        "object": "batch",
        "endpoint": body.endpoint,
        "errors": None,
        "input_file_id": body.input_file_id,
        "completion_window": body.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + WINDOWS[body.completion_window],
        **dict.fromkeys(_TIMES),
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": None,
        "metadata": body.metadata,
    }
    keeps = MAX_SECONDS if body.output_expires_after is None else body.output_expires_after.seconds
    return StoredBatch(id, owner, body.input_file_id, new_id("file"), new_id("file"), keeps, value)
