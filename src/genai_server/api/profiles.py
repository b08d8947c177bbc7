"""The operator's profile sessions: what there is, reports on it, downloads, and removal.

The routes that read are plain functions, which run in threads: a large profile takes a while. They look at the folder
that the engines write to, and name nothing in it but what a manifest names.
"""

import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse, Response, StreamingResponse

from genai_server.api.admin import set_runtime_options
from genai_server.api.auth import require_admin
from genai_server.api.services import Services, services
from genai_server.errors import InvalidField, ProfileNotFound
from genai_server.openai_api.schemas.admin import RuntimeOptionsRequest
from genai_server.openai_api.schemas.base import ErrorResponse
from genai_server.profiles.analysis import SLOW_AT, analyse
from genai_server.profiles.folder import find_session, read_session
from genai_server.profiles.manifest import Manifest, find_manifests
from genai_server.profiles.page import as_page
from genai_server.profiles.retention import is_open, remove
from genai_server.profiles.text import as_text
from genai_server.profiles.trace import write_trace

# The id that means the last session.
LATEST = "latest"
_CHUNK = 256 * 1024

router = APIRouter(
    tags=["admin"],
    dependencies=[Depends(require_admin)],
    responses={code: {"model": ErrorResponse} for code in (400, 403, 404, 503)},
)


def _profile_dir(services: Annotated[Services, Depends(services)]) -> Path:
    return services.settings.profile_dir


def _manifest(session_id: str, root: Annotated[Path, Depends(_profile_dir)]) -> Manifest:
    """The session of this id, for routes to depend on. Raises ProfileNotFound."""
    found = find_session(root, None if session_id == LATEST else session_id)
    if found is None:
        raise ProfileNotFound(f"no profile session is in {root}", param="session_id")
    return found


FoundManifest = Annotated[Manifest, Depends(_manifest)]


@router.post("/start_profile")
async def start_profile(services: Annotated[Services, Depends(services)]) -> dict[str, Any]:
    """What load tools call: `enable_profiling` "1" on all devices."""
    return await set_runtime_options(RuntimeOptionsRequest.model_validate({"enable_profiling": "1"}), services)


@router.post("/stop_profile")
async def stop_profile(services: Annotated[Services, Depends(services)]) -> dict[str, Any]:
    """The end of it: `enable_profiling` "0" on all devices."""
    return await set_runtime_options(RuntimeOptionsRequest.model_validate({"enable_profiling": "0"}), services)


@router.get("/v1/admin/profiles")
def list_profiles(root: Annotated[Path, Depends(_profile_dir)]) -> dict[str, Any]:
    """The profile sessions of all devices, oldest first."""
    try:
        manifests = find_manifests(root)
    except OSError:  # nothing was ever profiled
        manifests = []
    return {"object": "list", "data": [_summary(manifest) for manifest in manifests]}


@router.get("/v1/admin/profiles/{session_id}")
def get_profile(manifest: FoundManifest) -> dict[str, Any]:
    """A session with its passes, one for each of ONNX Runtime's files; `latest` is the last session."""
    return _summary(manifest) | {"passes": [msgspec.to_builtins(record) for record in manifest.passes]}


@router.get("/v1/admin/profiles/{session_id}/report")
def report_on_profile(
    manifest: FoundManifest,
    format: Literal["json", "text", "html"] = "json",
    slow: Annotated[float, Query(ge=1, le=1e6, allow_inf_nan=False)] = SLOW_AT,
) -> Response:
    """Time by operator, node, layer and phase, and the tokens that took more than `slow` times the median."""
    report = analyse(read_session(manifest), slow)
    if format == "text":
        return PlainTextResponse(as_text(report) + "\n")
    if format == "html":
        return HTMLResponse(as_page(report))
    return Response(msgspec.json.encode(report), media_type="application/json")


@router.get("/v1/admin/profiles/{session_id}/trace")
def trace_of_profile(manifest: FoundManifest) -> Response:
    """All files of a session as one trace for https://ui.perfetto.dev."""
    profile = read_session(manifest)
    return _download(f"{manifest.session.id}.trace.json", "application/json", lambda out: write_trace(profile, out))


@router.get("/v1/admin/profiles/{session_id}/files")
def download_profile(manifest: FoundManifest) -> Response:
    """All files of a session with its manifest, as zip."""

    def write(out: IO[bytes]) -> None:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path in [manifest.path, *manifest.files]:
                if path.is_file():
                    archive.write(path, path.name)

    return _download(f"{manifest.session.id}.zip", "application/zip", write)


@router.get("/v1/admin/profiles/{session_id}/files/{name}")
def download_file(manifest: FoundManifest, name: str) -> Response:
    """One of ONNX Runtime's files, as it wrote it."""
    path = next((path for path in manifest.files if path.name == name), None)
    if path is None or not path.is_file():
        raise ProfileNotFound(f"no file {name!r} is in session {manifest.session.id!r}", param="name")
    return FileResponse(path, media_type="application/json", filename=name)


@router.delete("/v1/admin/profiles/{session_id}")
def delete_profile(manifest: FoundManifest) -> dict[str, Any]:
    """Remove a session that has ended, with its files."""
    if is_open(manifest, time.time()):
        raise InvalidField(
            f'session {manifest.session.id!r} is still written to: set enable_profiling to "0" first',
            param="session_id",
        )
    try:
        remove(manifest)
    except OSError as error:
        raise InvalidField(f"session {manifest.session.id!r} cannot be removed: {error}", param="session_id") from None
    return {"id": manifest.session.id, "object": "profile", "deleted": True}


def _summary(manifest: Manifest) -> dict[str, Any]:
    about = msgspec.to_builtins(manifest.session)
    del about["type"]
    end = manifest.end
    return {
        "object": "profile",
        **about,
        "open": is_open(manifest, time.time()),
        "ended": None if end is None else end.ended,
        "reason": None if end is None else end.reason,
        "requests": list(dict.fromkeys(record.request_id for record in manifest.passes)),
        "files": len(manifest.passes),
        "bytes": sum(path.stat().st_size for path in manifest.files if path.is_file()),
    }


def _download(name: str, media_type: str, write: Callable[[IO[bytes]], object]) -> Response:
    """An answer with what is written, by way of a file: it may be large."""
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        write(file)
        size = file.tell()
        file.seek(0)
        kept = stack.pop_all()

    def pieces() -> Iterator[bytes]:
        with kept:
            while piece := file.read(_CHUNK):
                yield piece

    headers = {"content-disposition": f'attachment; filename="{name}"', "content-length": str(size)}
    return StreamingResponse(pieces(), media_type=media_type, headers=headers)
