"""The endpoints /v1/files of OpenAI's API, with which clients upload the input files of batches, list and delete their
files, and download results. `page_json` writes a page of any list, and `caller_files` gives other routes the store of
files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Body, Depends, FastAPI, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from genai_server.apis.shared.router import VersionedRouter
from genai_server.errors import StoredFileNotFound, UnsupportedEndpoint
from genai_server.generation.parameters.base import StrictModel
from genai_server.http.body_route import BodyRoute
from genai_server.http.json_response import JsonObject, built_response
from genai_server.http.middleware.authentication import KeyHolderDep
from genai_server.http.request_state import request_state
from genai_server.http.upload import FORM
from genai_server.store.files import FileStore

# How long the files of batches are kept by default, as by OpenAI, and what clients may choose; in seconds.
MAX_SECONDS = 30 * 86_400
MIN_SECONDS = 3600
Seconds = Annotated[int, Field(ge=MIN_SECONDS, le=MAX_SECONDS)]


class ExpiresAfter(StrictModel):
    """When the server removes a file: `seconds` after the file was created, from one hour to 30 days."""

    model_config = ConfigDict(strict=False)

    anchor: Literal["created_at"]
    seconds: Seconds = Field(description="From 1 hour to 30 days after the file was created.")


class FileForm(StrictModel):
    """Form that POST /v1/files receives: the file with one request of a batch in each line, its purpose (only `batch`),
    and optionally when the server removes it.
    """

    model_config = ConfigDict(strict=False)

    # Strict, because a text would be a path that the client has chosen.
    file: Annotated[Path, WithJsonSchema({"type": "string", "format": "binary"})] = Field(
        strict=True, description="The file, with one request of a batch in each line."
    )
    purpose: Literal["batch"] = Field(description="Only `batch`: no other endpoint reads files.")
    expires_after: ExpiresAfter | None = Field(None, description="By default a file is removed after 30 days.")


class ListParameters(BaseModel):
    """Query parameters of GET /v1/files: `after` is the id of the last file of the previous page, `limit` the maximum
    number of files per page, `order` the order by time of creation, and `purpose` restricts the list.
    """

    model_config = ConfigDict(extra="forbid")

    after: str | None = Field(None, description="Id of the last file of the previous page.")
    limit: int = Field(10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class FileObject(BaseModel):
    """A stored file in OpenAI's format: an uploaded input file of a batch, or a file with a batch's results. `bytes` is
    its size; times are in seconds since 1970.
    """

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
    """A page of the list of files. `first_id` and `last_id` are the ids of its first and last file; `has_more` says
    whether another page follows.
    """

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """Response of DELETE /v1/files/{file_id}. It confirms that the file with this id has been deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


def page_json(entries: Sequence[JsonObject], *, has_more: bool) -> JsonObject:
    """Return a page of a list in OpenAI's format, from `entries`, objects with an `id`. `has_more` says whether other
    entries follow the page.
    """
    first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    return {"object": "list", "data": list(entries), "first_id": first, "last_id": last, "has_more": has_more}


PATH = "/v1/files"
_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
# Where bodies with files are expected.
UPLOAD_PATHS = frozenset({PATH, PATH.removeprefix("/v1")})
router = VersionedRouter(BodyRoute, "openai")
_FEW = 100


def _store(app: FastAPI) -> FileStore:
    store: FileStore | None = app.state.files
    if store is None:
        raise UnsupportedEndpoint("this server stores no files and runs no batches: GENAI_FILES_DIR names no folder")
    return store


def upload_folder(app: FastAPI) -> Path:
    """Return the folder to which this API process writes uploads until they are stored as files. Raises
    UnsupportedEndpoint if files are disabled.
    """
    return _store(app).own_uploads


@dataclass(frozen=True)
class CallerFiles:
    """The store of files together with the owner (an API key) whose files the client of the current request may use.
    The routes of files and batches receive it as a dependency.
    """

    store: FileStore
    owner: str


async def caller_files(request: Request, holder: KeyHolderDep) -> CallerFiles:
    """Return the store of files and the owner whose files the client of this request may use. A FastAPI dependency of
    the routes of files and batches. Raises UnsupportedEndpoint if files are disabled.
    """
    return CallerFiles(_store(request.app), holder or "")


# The type of a route's parameter.
FilesDep = Annotated[CallerFiles, Depends(caller_files)]


@router.post(PATH, response_model=FileObject, response_model_exclude_none=True)
async def upload_file(
    form: Annotated[FileForm, Body(media_type=FORM)], request: Request, files: FilesDep
) -> dict[str, Any]:
    """Upload a file with the requests of a batch. Returns the file's properties, among them the `id` that creates the
    batch.
    """
    upload = request_state(request.scope).upload
    name = (upload.file_name if upload is not None else "") or "file"
    seconds = MAX_SECONDS if form.expires_after is None else form.expires_after.seconds
    return (await files.store.add(form.file, name, form.purpose, files.owner, seconds)).to_json()


@router.get(PATH, response_model=FileList)
async def list_files(query: Annotated[ListParameters, Query()], files: FilesDep) -> Response:
    """List the files of the client's API key page by page, by default newest first."""
    page, has_more = await files.store.page(
        files.owner, after=query.after, limit=query.limit, order=query.order, purpose=query.purpose
    )
    return await built_response(
        lambda: page_json([file.to_json() for file in page], has_more=has_more), is_long=len(page) > _FEW
    )


@router.get(PATH + "/{file_id}", response_model=FileObject, response_model_exclude_none=True)
async def get_file(file_id: str, files: FilesDep) -> dict[str, Any]:
    """Get the properties of a file, such as its name and size in bytes. Raises StoredFileNotFound if the client's API
    key has no file with this id.
    """
    return (await files.store.get(file_id, files.owner)).to_json()


@router.get(PATH + "/{file_id}/content", response_class=FileResponse, responses=_CONTENT)
async def get_file_content(file_id: str, files: FilesDep) -> FileResponse:
    """Download the content of a file. Raises StoredFileNotFound if the client's API key has no file with this id."""
    file = await files.store.get(file_id, files.owner)
    path = files.store.content(file.id)
    if not path.is_file():
        raise StoredFileNotFound(f"the content of {file.id} is missing", param="file_id")
    return FileResponse(path, media_type="application/octet-stream", filename=file.name)


@router.delete(PATH + "/{file_id}", response_model=DeletedFile)
async def delete_file(file_id: str, files: FilesDep) -> DeletedFile:
    """Delete a file and its content. Raises StoredFileNotFound if the client's API key has no file with this id, and
    InvalidField while the file is the input of a batch that has not ended.
    """
    await files.store.delete(file_id, files.owner)
    return DeletedFile(id=file_id)
