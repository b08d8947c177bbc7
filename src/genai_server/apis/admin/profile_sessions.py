"""Admin endpoints that start, list, report on, download and remove profile sessions.

In a profile session, an engine lets ONNX Runtime write a profile file for each forward pass of chosen requests and
tokens. The session's manifest lists these files. Routes that read profiles are plain functions, which FastAPI runs in
threads, because reading a large profile takes long. They read the folder to which the engines write, and only files
that are listed in a manifest.
"""

import asyncio
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import msgspec
from fastapi import Depends, Query
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse, Response, StreamingResponse

from genai_server.apis.admin.engines import admin_router, ask, set_runtime_options
from genai_server.apis.admin.schemas import ProfileRequest, RuntimeOptionsRequest
from genai_server.engine_client.client import EngineClient
from genai_server.errors import InvalidField, MissingField, NoEngineReady, ProfileNotFound, RequestNotFound, quoted
from genai_server.generation.dependencies import ServicesDep
from genai_server.messages.admin import EndProfile, ListProfiles, ProfilePlan, ProfileState, StartProfile
from genai_server.profiles.manifest import Manifest, find_manifests, is_open, remove
from genai_server.profiles.profile_files import find_session, read_session
from genai_server.profiles.report import SLOW_AT, analyse
from genai_server.profiles.report_formats import as_page, as_text
from genai_server.profiles.trace import write_trace

# The id that refers to the most recent session.
LATEST = "latest"
_CHUNK = 256 * 1024

router = admin_router()


def _profile_dir(services: ServicesDep) -> Path:
    return services.settings.profile_dir


def _manifest(session_id: str, root: Annotated[Path, Depends(_profile_dir)]) -> Manifest:
    """Find the manifest of a profile session, which lists the session's files. A FastAPI dependency of the routes.

    `session_id` is the id in the route's path; `latest` stands for the most recent session. `root` is the folder to
    which engines write profiles. Raises ProfileNotFound.
    """
    manifest = find_session(root, None if session_id == LATEST else session_id)
    if manifest is None:
        raise ProfileNotFound(f"no profile session is in {root}", param="session_id")
    return manifest


async def _open_sessions(services: ServicesDep) -> Mapping[str, ProfileState]:
    """Ask the engines for the profile sessions that have not ended, and return their states, keyed by session id. The
    result is empty if no engine runs. A FastAPI dependency of the routes.

    Profiling that was switched on with the runtime option `enable_profiling` is not a session in this sense and is not
    included.
    """
    try:
        replies = await ask(services.models.engines(), ListProfiles)
    except NoEngineReady:
        return {}
    return {state.id: state for _, reply in replies for state in reply.sessions}


FoundManifest = Annotated[Manifest, Depends(_manifest)]
OpenSessions = Annotated[Mapping[str, ProfileState], Depends(_open_sessions)]


@router.post("/start_profile")
async def start_profile(services: ServicesDep) -> dict[str, Any]:
    """Start profiling on all devices: set the runtime option `enable_profiling` to "1". Load generators call this
    endpoint at the beginning of a measurement. Returns the runtime options of each device.
    """
    return await set_runtime_options(RuntimeOptionsRequest.model_validate({"enable_profiling": "1"}), services)


@router.post("/stop_profile")
async def stop_profile(services: ServicesDep) -> dict[str, Any]:
    """Stop profiling on all devices: set the runtime option `enable_profiling` to "0". Load generators call this
    endpoint at the end of a measurement. Returns the runtime options of each device.
    """
    return await set_runtime_options(RuntimeOptionsRequest.model_validate({"enable_profiling": "0"}), services)


@router.post("/v1/admin/profiles")
async def begin_profile(
    body: ProfileRequest, services: ServicesDep, root: Annotated[Path, Depends(_profile_dir)]
) -> dict[str, Any]:
    """Start a profile session on one device of one model, or on the device that runs the given request. Returns the
    session as JSON; its `id` is needed to get the report and the files.
    """
    engines = services.models.engines(body.model, body.device)
    if len(engines) > 1 and body.request_id is None:
        field, names = ("device", [engine.device for engine in engines])
        if len(set(names)) < len(names):
            field, names = ("model", list(dict.fromkeys(engine.model_name for engine in engines)))
        raise MissingField(field, f"is required: there are several ({', '.join(names)})")
    session = await _begin(engines, body.plan())
    manifest = await asyncio.to_thread(find_session, root, session.id)
    assert manifest is not None
    return _summary(manifest, {session.id: session})


async def _begin(engines: Sequence[EngineClient], plan: ProfilePlan) -> ProfileState:
    """Start a profile session on the first of `engines` that accepts it, and return the state of the session.

    Raises RequestNotFound if `plan` names a request that no engine has, and the errors with which an engine refuses a
    session.
    """
    for engine in engines:
        with suppress(RequestNotFound):
            ((_, reply),) = await ask([engine], lambda number: StartProfile(number, plan))
            return reply.sessions[0]
    raise RequestNotFound(f"no request {quoted(plan.request_id)} is running or waiting", param="request_id")


@router.get("/v1/admin/profiles")
def list_profiles(root: Annotated[Path, Depends(_profile_dir)], open_sessions: OpenSessions) -> dict[str, Any]:
    """List the profile sessions of all devices, open and ended ones, oldest first, each with its plan, state, and
    number and size of files.
    """
    try:
        manifests = find_manifests(root)
    except OSError:  # nothing has been profiled yet
        manifests = []
    return {"object": "list", "data": [_summary(manifest, open_sessions) for manifest in manifests]}


@router.get("/v1/admin/profiles/{session_id}")
def get_profile(open_sessions: OpenSessions, manifest: FoundManifest) -> dict[str, Any]:
    """Get a profile session and its list of profiled forward passes (`passes`), for each of which ONNX Runtime has
    written one profile file. The id `latest` stands for the most recent session.
    """
    return _summary(manifest, open_sessions) | {"passes": [msgspec.to_builtins(record) for record in manifest.passes]}


@router.get("/v1/admin/profiles/{session_id}/report")
def report_on_profile(
    manifest: FoundManifest,
    format: Literal["json", "text", "html"] = "json",
    slow: Annotated[float, Query(ge=1, le=1e6, allow_inf_nan=False)] = SLOW_AT,
) -> Response:
    """Report where the time of a profile session went: the time by operator, node, layer and phase (prefill or decode),
    and the tokens that took more than `slow` times the median time of a token. `format` is the format of the report.
    """
    report = analyse(read_session(manifest), slow)
    if format == "text":
        return PlainTextResponse(as_text(report) + "\n")
    if format == "html":
        return HTMLResponse(as_page(report))
    return Response(msgspec.json.encode(report), media_type="application/json")


@router.get("/v1/admin/profiles/{session_id}/trace")
def trace_of_profile(manifest: FoundManifest) -> Response:
    """Download all profile files of a session, merged into one trace that https://ui.perfetto.dev can show."""
    profile = read_session(manifest)
    return _download(f"{manifest.session.id}.trace.json", "application/json", lambda out: write_trace(profile, out))


@router.get("/v1/admin/profiles/{session_id}/files")
def download_profile(manifest: FoundManifest) -> Response:
    """Download all profile files of a session, and the manifest that lists them, as a zip archive."""

    def write(out: IO[bytes]) -> None:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path in [manifest.path, *manifest.files]:
                if path.is_file():
                    archive.write(path, path.name)

    return _download(f"{manifest.session.id}.zip", "application/zip", write)


@router.get("/v1/admin/profiles/{session_id}/files/{name}")
def download_file(manifest: FoundManifest, name: str) -> Response:
    """Download one of a session's profile files, as ONNX Runtime has written it. `name` is the file's name. Raises
    ProfileNotFound if the session has no such file.
    """
    path = next((path for path in manifest.files if path.name == name), None)
    if path is None or not path.is_file():
        raise ProfileNotFound(f"no file {quoted(name)} is in session {quoted(manifest.session.id)}", param="name")
    return FileResponse(path, media_type="application/json", filename=name)


@router.delete("/v1/admin/profiles/{session_id}")
async def delete_profile(manifest: FoundManifest, open_sessions: OpenSessions, services: ServicesDep) -> dict[str, Any]:
    """End a profile session that is still open, or remove an ended session with its files. The field `deleted` of the
    response says whether the session was removed.
    """
    session = manifest.session
    if session.id in open_sessions:
        for engine in services.models.engines(device=session.device):
            with suppress(ProfileNotFound):  # the session is another model's, or has just ended
                await ask([engine], lambda number: EndProfile(number, session.id))
        return {"id": session.id, "object": "profile", "deleted": False}
    if _is_open(manifest, open_sessions):
        raise InvalidField(
            "session_id",
            f'{quoted(session.id)} is of a session that is still being written: set enable_profiling to "0" first',
        )
    try:
        await asyncio.to_thread(remove, manifest)
    except OSError as error:
        raise InvalidField("session_id", f"{quoted(session.id)} cannot be removed: {error}") from None
    return {"id": session.id, "object": "profile", "deleted": True}


def _is_open(manifest: Manifest, open_sessions: Mapping[str, ProfileState]) -> bool:
    """Return whether an engine may still write to the profile session with this manifest. `open_sessions` has the
    sessions that engines report as not ended, keyed by session id.
    """
    if manifest.session.plan is not None:
        return manifest.session.id in open_sessions
    return is_open(manifest, time.time())


def _summary(manifest: Manifest, open_sessions: Mapping[str, ProfileState]) -> dict[str, Any]:
    """Return a profile session as JSON, as the endpoints report it: its plan and device, and the state, requests,
    number and size in bytes of its files.

    `open_sessions` has the sessions that engines report as not ended, keyed by session id. While the session is open,
    `state` is what its engine reports; afterwards it is "ended".
    """
    session = msgspec.to_builtins(manifest.session)
    del session["type"]
    still, end = _is_open(manifest, open_sessions), manifest.end
    state = open_sessions.get(manifest.session.id)
    reason = end.reason if end else None if still else "its engine has ended"
    profiled = state.profiled if state else end.profiled if end else None
    return {
        "object": "profile",
        **session,
        "open": still,
        "state": state.state if state else "recording" if still else "ended",
        "profiled": msgspec.to_builtins(profiled),
        "ended": None if end is None else end.ended,
        "reason": reason,
        "requests": list(dict.fromkeys(record.request_id for record in manifest.passes)),
        "files": len(manifest.passes),
        "bytes": sum(path.stat().st_size for path in manifest.files if path.is_file()),
    }


def _download(name: str, media_type: str, write: Callable[[IO[bytes]], object]) -> Response:
    """Return a response that browsers save as a file with the name `name`. The function `write` writes the content to
    the temporary file that it receives, because the content may be too large for the memory.
    """
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        write(file)
        size = file.tell()
        file.seek(0)
        resources = stack.pop_all()

    def pieces() -> Iterator[bytes]:
        with resources:
            while piece := file.read(_CHUNK):
                yield piece

    headers = {"content-disposition": f'attachment; filename="{name}"', "content-length": str(size)}
    return StreamingResponse(pieces(), media_type=media_type, headers=headers)
