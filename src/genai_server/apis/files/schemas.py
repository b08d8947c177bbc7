"""Forms, parameters and responses of OpenAI's files API."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from genai_server.generation.parameters.base import Wire
from genai_server.http.json_response import JsonObject

# How long the files of batches are kept by default, as by OpenAI, and what clients may choose; in seconds.
MAX_SECONDS = 30 * 86_400
MIN_SECONDS = 3600
Seconds = Annotated[int, Field(ge=MIN_SECONDS, le=MAX_SECONDS)]


class ExpiresAfter(Wire):
    """When the server removes a file."""

    model_config = ConfigDict(strict=False)

    anchor: Literal["created_at"]
    seconds: Seconds = Field(description="From 1 hour to 30 days after the file was created.")


class FileForm(Wire):
    """Body of POST /v1/files."""

    model_config = ConfigDict(strict=False)

    # Strict, because a text would be a path that the client has chosen.
    file: Annotated[Path, WithJsonSchema({"type": "string", "format": "binary"})] = Field(
        strict=True, description="The file, with one request of a batch in each line."
    )
    purpose: Literal["batch"] = Field(description="Only `batch`: no other endpoint reads files.")
    expires_after: ExpiresAfter | None = Field(None, description="By default a file is removed after 30 days.")


class ListParameters(BaseModel):
    """Query parameters of GET /v1/files."""

    model_config = ConfigDict(extra="forbid")

    after: str | None = Field(None, description="Id of the last file of the previous page.")
    limit: int = Field(10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class FileObject(BaseModel):
    """A stored file. Times are in seconds since 1970."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None = None


class FileList(BaseModel):
    """A page of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """Confirms that a file has been deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


def page_json(entries: Sequence[JsonObject], *, has_more: bool) -> JsonObject:
    """A page of a list in OpenAI's format. `has_more` says whether other entries follow."""
    first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    return {"object": "list", "data": list(entries), "first_id": first, "last_id": last, "has_more": has_more}
