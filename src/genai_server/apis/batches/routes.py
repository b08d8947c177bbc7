"""OpenAI's /v1/batches: requests in a file, which are answered when the server has nothing else to do."""

from typing import Annotated, Any

from fastapi import Depends, Query, Request

from genai_server.apis.batches.running import Batches
from genai_server.apis.batches.schemas import Batch, BatchList, BatchListParameters, BatchRequest
from genai_server.apis.files.routes import TheFiles
from genai_server.apis.files.store import page_json
from genai_server.apis.shared.router import VersionedRouter
from genai_server.http.body_route import BodyRoute

PATH = "/v1/batches"
router = VersionedRouter(BodyRoute, "openai", codes=(429,))


async def the_batches(request: Request, files: TheFiles) -> Batches:
    """The app's batches. Depends on TheFiles: without files there are no batches."""
    found: Batches = request.app.state.batches
    return found


# The type of a route's parameter.
TheBatches = Annotated[Batches, Depends(the_batches)]


@router.post(PATH, response_model=Batch)
async def create_batch(body: BatchRequest, files: TheFiles, batches: TheBatches) -> dict[str, Any]:
    """Create a batch of the requests in an uploaded file."""
    created = await batches.store.create(body, files.owner)
    batches.look()
    return created


@router.get(PATH, response_model=BatchList)
async def list_batches(
    query: Annotated[BatchListParameters, Query()], files: TheFiles, batches: TheBatches
) -> dict[str, Any]:
    """A page of the caller's batches, newest first."""
    found, has_more = await batches.store.page(files.owner, after=query.after, limit=query.limit)
    return page_json(found, has_more=has_more)


@router.get(PATH + "/{batch_id}", response_model=Batch)
async def get_batch(batch_id: str, files: TheFiles, batches: TheBatches) -> dict[str, Any]:
    """The state of a batch."""
    return await batches.store.get(batch_id, files.owner)


@router.post(PATH + "/{batch_id}/cancel", response_model=Batch)
async def cancel_batch(batch_id: str, files: TheFiles, batches: TheBatches) -> dict[str, Any]:
    """Cancel a batch; results so far are kept."""
    return await batches.store.cancel(batch_id, files.owner)
