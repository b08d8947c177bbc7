"""The endpoints /v1/batches of OpenAI's API, and the schemas of their bodies. A batch is a set of requests in an
uploaded file; the server answers them in the background with low priority and writes the answers to result files.
"""

import time
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from genai_server.apis.batches.running import Batches
from genai_server.apis.files import MAX_SECONDS, ExpiresAfter, FilesDep, page_json
from genai_server.apis.shared.router import VersionedRouter
from genai_server.generation.parameters.base import Metadata, NonEmptyText, StrictModel
from genai_server.http.body_route import BodyRoute
from genai_server.store.batches import StoredBatch
from genai_server.store.files import new_id

# Seconds of a completion window.
WINDOWS = {"24h": 86_400}
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class BatchRequest(StrictModel):
    """Body of POST /v1/batches, in OpenAI's format: the id of the uploaded input file with one request in each line,
    the endpoint that answers the requests, the time in which they must be answered, and optionally metadata and the
    time after which the result files are removed.
    """

    input_file_id: NonEmptyText = Field(description="An uploaded file with one request in each line.")
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: Literal["24h"] = Field(description="Requests that have not been answered by then expire.")
    metadata: Metadata | None = Field(None, description="Returned unchanged.")
    output_expires_after: ExpiresAfter | None = Field(
        None, description="When the files with the results are removed; by default 30 days after the batch was created."
    )


class BatchListParameters(BaseModel):
    """Query parameters of GET /v1/batches: `after` is the id of the last batch of the previous page, and `limit` the
    maximum number of batches per page.
    """

    model_config = ConfigDict(extra="forbid")

    after: str | None = Field(None, description="Id of the last batch of the previous page.")
    limit: int = Field(20, ge=1, le=100)


class RequestCounts(BaseModel):
    """The total number of requests in a batch, and how many of them have been completed or have failed."""

    total: int
    completed: int
    failed: int


class BatchErrors(BaseModel):
    """Why a batch has failed, or why it is waiting (code `storage_full`). Each error in `data` has `code`, `message`,
    `param` and `line`, the number of the line in the input file; `param` and `line` may be null.
    """

    object: Literal["list"]
    data: list[dict[str, Any]]


class Batch(BaseModel):
    """A batch of requests in OpenAI's format: its status, the ids of its input file and result files, the numbers of
    answered and failed requests, and the token counts. Fields that end in `_at` are times in seconds since 1970; null
    means that the batch has not reached that status.
    """

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: dict[str, Any] | None
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    """A page of the list of batches. `first_id` and `last_id` are the ids of its first and last batch; `has_more` says
    whether another page follows.
    """

    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


PATH = "/v1/batches"
router = VersionedRouter(BodyRoute, "openai", codes=(429,))
_TIMES = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at"),
)


async def the_batches(request: Request, files: FilesDep) -> Batches:
    """Return the object that runs the batches of this API process. A FastAPI dependency of the routes of /v1/batches.
    The dependency `files` raises UnsupportedEndpoint if GENAI_FILES_DIR is not set.
    """
    batches: Batches = request.app.state.batches
    return batches


# The type of a route's parameter.
BatchesDep = Annotated[Batches, Depends(the_batches)]


@router.post(PATH, response_model=Batch)
async def create_batch(body: BatchRequest, files: FilesDep, batches: BatchesDep) -> dict[str, Any]:
    """Create a batch from the requests in an uploaded file. Returns the batch, whose requests are answered in the
    background.
    """
    batch = new_batch(body, files.owner)
    await batches.store.create(batch)
    batches.wake()
    return batch.value


@router.get(PATH, response_model=BatchList)
async def list_batches(
    query: Annotated[BatchListParameters, Query()], files: FilesDep, batches: BatchesDep
) -> dict[str, Any]:
    """List the batches of the client's API key page by page, newest first."""
    page, has_more = await batches.store.page(files.owner, after=query.after, limit=query.limit)
    return page_json(page, has_more=has_more)


@router.get(PATH + "/{batch_id}", response_model=Batch)
async def get_batch(batch_id: str, files: FilesDep, batches: BatchesDep) -> dict[str, Any]:
    """Get the current state of a batch: its status, its result files, and how many requests have been answered. Raises
    BatchNotFound if the client's API key has no batch with this id.
    """
    return await batches.store.get(batch_id, files.owner)


@router.post(PATH + "/{batch_id}/cancel", response_model=Batch)
async def cancel_batch(batch_id: str, files: FilesDep, batches: BatchesDep) -> dict[str, Any]:
    """Cancel a batch: requests that have no result yet are not answered. The results written so far are kept. Returns
    the batch. Raises BatchNotFound if the client's API key has no batch with this id, and InvalidField if the batch is
    in a state in which it cannot be cancelled.
    """
    return await batches.store.cancel(batch_id, files.owner)


def new_batch(body: BatchRequest, owner: str) -> StoredBatch:
    """Create the batch that a request body describes, with new ids for the batch and its two result files. `owner`
    identifies the API key of the client. The batch is returned and not stored.
    """
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
