"""Bodies, parameters and responses of OpenAI's batches API."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from genai_server.apis.files.schemas import ExpiresAfter
from genai_server.generation.parameters.base import Metadata, NonEmptyText, Wire

# Seconds of a completion window.
WINDOWS = {"24h": 86_400}
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class BatchRequest(Wire):
    """Body of POST /v1/batches."""

    input_file_id: NonEmptyText = Field(description="An uploaded file with one request in each line.")
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: Literal["24h"] = Field(description="Requests that have not been answered by then expire.")
    metadata: Metadata | None = Field(None, description="Returned unchanged.")
    output_expires_after: ExpiresAfter | None = Field(
        None, description="When the files with the results are removed; by default 30 days after the batch was created."
    )


class BatchListParameters(BaseModel):
    """Query parameters of GET /v1/batches."""

    model_config = ConfigDict(extra="forbid")

    after: str | None = Field(None, description="Id of the last batch of the previous page.")
    limit: int = Field(20, ge=1, le=100)


class RequestCounts(BaseModel):
    """The number of requests in a batch, and how many of them have been completed or have failed."""

    total: int
    completed: int
    failed: int


class BatchErrors(BaseModel):
    """Why a batch has failed, or why it is waiting (`storage_full`). Each entry has `code`, `message`, `param` and
    `line`.
    """

    object: Literal["list"]
    data: list[dict[str, Any]]


class Batch(BaseModel):
    """A batch of requests. Times are in seconds since 1970."""

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
    """A page of batches."""

    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
