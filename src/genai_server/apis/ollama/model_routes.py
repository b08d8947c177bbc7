"""The endpoints of Ollama's API about models: /api/tags, /api/show, /api/ps and /api/version."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter

from genai_server import __version__
from genai_server.apis.models.model_files import ModelFiles, read_files
from genai_server.apis.models.routes import model_entry
from genai_server.apis.ollama.response import timestamp
from genai_server.apis.ollama.schemas import OllamaErrorResponse, ShowRequest
from genai_server.apis.shared.router import error_responses
from genai_server.errors import MissingField
from genai_server.generation.catalog import names_of
from genai_server.generation.dependencies import Services, ServicesDep
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import LeftOut
from genai_server.messages.server_status import ModelState, ModelStatus

_ERRORS = error_responses(400, 404, 500, 503, error=OllamaErrorResponse)
# Responses of endpoints with features that require an admin key.
OPERATORS_ERRORS = error_responses(400, 403, 404, 500, 503, error=OllamaErrorResponse)
router = APIRouter(
    route_class=lenient_route(LeftOut(), takes_undeclared=True, takes_unknown=True),
    tags=["ollama"],
    responses=_ERRORS,
)
# The version of Ollama that this API corresponds to: some clients refuse older ones.
OLLAMA_VERSION = "0.19.0"
# The expiry of a model that is never unloaded.
_FOREVER = timedelta(days=100 * 365)


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Get the version of Ollama whose API this server implements, and this server's version."""
    return {"version": OLLAMA_VERSION, "server": f"genai-server {__version__}"}


@router.get("/api/tags")
async def list_models(services: ServicesDep) -> dict[str, Any]:
    """List models, loaded or not, with their aliases and adapters. Models that failed to load are left out."""
    found = []
    for status in services.models.usable():
        files = await asyncio.to_thread(read_files, status)
        more = {"modified_at": timestamp(files.modified), "capabilities": model_entry(services, status)["capabilities"]}
        found += [{**_entry(name, status, files), **more} for name in names_of(status)]
    return {"models": found}


@router.get("/api/ps")
async def list_running(services: ServicesDep) -> dict[str, Any]:
    """List the loaded models. `expires_at` is the time at which a model is unloaded if no more requests for it
    arrive.
    """
    found = []
    for status in services.models.statuses():
        if status.state != ModelState.READY:
            continue
        files = await asyncio.to_thread(read_files, status)
        remaining = _FOREVER if status.idle_unload is None else timedelta(seconds=status.idle_unload)
        is_on_host = all(device.partition(":")[0] in ("cpu", "scripted") for device in status.devices)
        found.append(
            {
                **_entry(status.name, status, files),
                "expires_at": timestamp(datetime.now(UTC) + min(remaining, _FOREVER)),
                "size_vram": 0 if is_on_host else files.size,
                "context_length": _context_length(services, status) or 0,
            }
        )
    return {"models": found}


@router.post("/api/show")
async def show_model(body: ShowRequest, services: ServicesDep) -> dict[str, Any]:
    """Get details of one model."""
    name = body.model or body.name
    if not name:
        raise MissingField("model", "is required")
    status = services.models.choose(name).about
    files = await asyncio.to_thread(read_files, status)
    length = _context_length(services, status)
    architecture = files.family or "unknown"
    served = services.models.served(status)
    template = served.codec.writer.source if served is not None and served.is_readable else ""
    parameters = {} if length is None else {"num_ctx": length}
    model_info = {"general.architecture": architecture, "general.basename": status.name}
    return {
        "modelfile": f"FROM {status.name}\n",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
        "template": template,
        "details": _details(files),
        "model_info": model_info | ({} if length is None else {f"{architecture}.context_length": length}),
        "capabilities": model_entry(services, status)["capabilities"],
        "modified_at": timestamp(files.modified),
    }


def _entry(name: str, status: ModelStatus, files: ModelFiles) -> JsonObject:
    named = name if ":" in name else f"{name}:latest"
    return {"name": named, "model": named, "size": files.size, "digest": files.digest, "details": _details(files)}


def _details(files: ModelFiles) -> JsonObject:
    return {
        "parent_model": "",
        "format": "onnx",
        "family": files.family,
        "families": [files.family] if files.family else [],
        "parameter_size": "",
        "quantization_level": "unknown",
    }


def _context_length(services: Services, status: ModelStatus) -> int | None:
    served = services.models.served(status)
    return None if served is None else served.max_length
