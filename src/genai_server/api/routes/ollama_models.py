"""Ollama's endpoints about models: /api/tags, /api/show, /api/ps and /api/version."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter

from genai_server import __version__
from genai_server.api.catalog import Catalog, ChosenModel, names_of
from genai_server.api.middleware.body import lenient_route
from genai_server.api.model_files import ModelFiles, read_files
from genai_server.api.routes.models import model_entry
from genai_server.api.services import Services, TheServices
from genai_server.errors import MissingField, ModelNotFound
from genai_server.messages.status_file import ModelState, ModelStatus
from genai_server.ollama_api.answer import timestamp
from genai_server.ollama_api.schemas import OllamaErrorResponse, ShowRequest
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.quoted_values import quoted

_ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": OllamaErrorResponse} for code in (400, 404, 500, 503)}
# Of endpoints with something that is for operators.
OPERATORS_ERRORS: dict[int | str, dict[str, Any]] = {**_ERRORS, 403: {"model": OllamaErrorResponse}}
router = APIRouter(
    route_class=lenient_route(lambda body: [], takes_undeclared=True), tags=["ollama"], responses=_ERRORS
)
# The release of Ollama whose API this is: some clients refuse an older one.
OLLAMA_VERSION = "0.19.0"
# The end of a model that is never unloaded.
_FOR_EVER = timedelta(days=100 * 365)


def find_model(models: Catalog, name: str | None) -> ChosenModel:
    """The model of a name; the first without a name. Raises ModelNotFound in Ollama's words."""
    try:
        return models.choose(name)
    except ModelNotFound as error:
        if name is None:
            raise
        # Clients look for these words.
        message = f"model {quoted(name)} not found, try pulling it first: {error.message}"
        raise error.reworded(message, param="model") from None


@router.get("/api/version")
async def version() -> dict[str, str]:
    """The release of Ollama whose API this is, and this server's own."""
    return {"version": OLLAMA_VERSION, "server": f"genai-server {__version__}"}


@router.get("/api/tags")
async def list_models(services: TheServices) -> dict[str, Any]:
    """The models, loaded or not, their aliases and their adapters. One that has failed is not among them."""
    found = []
    for about in services.models.usable():
        files = await asyncio.to_thread(read_files, about)
        more = {"modified_at": timestamp(files.modified), "capabilities": _capabilities(services, about)}
        found += [{**_entry(name, about, files), **more} for name in names_of(about)]
    return {"models": found}


@router.get("/api/ps")
async def list_running(services: TheServices) -> dict[str, Any]:
    """The models that are loaded. `expires_at` is when one is unloaded if it gets no more requests from now on."""
    found = []
    for about in services.models.statuses():
        if about.state != ModelState.READY:
            continue
        files = await asyncio.to_thread(read_files, about)
        kept = _FOR_EVER if about.idle_unload is None else timedelta(seconds=about.idle_unload)
        is_on_host = all(device.partition(":")[0] in ("cpu", "scripted") for device in about.devices)
        found.append(
            {
                **_entry(about.name, about, files),
                "expires_at": timestamp(datetime.now(UTC) + min(kept, _FOR_EVER)),
                "size_vram": 0 if is_on_host else files.size,
                "context_length": _context_length(services, about) or 0,
            }
        )
    return {"models": found}


@router.post("/api/show")
async def show_model(body: ShowRequest, services: TheServices) -> dict[str, Any]:
    """What is known of one model."""
    name = body.model or body.name
    if not name:
        raise MissingField("model is required", param="model")
    about = find_model(services.models, name).about
    files = await asyncio.to_thread(read_files, about)
    length = _context_length(services, about)
    architecture = files.family or "unknown"
    served = services.models.served(about)
    template = served.codec.writer.source if served is not None and served.is_readable else ""
    parameters = {} if length is None else {"num_ctx": length}
    model_info = {"general.architecture": architecture, "general.basename": about.name}
    return {
        "modelfile": f"FROM {about.name}\n",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
        "template": template,
        "details": _details(files),
        "model_info": model_info | ({} if length is None else {f"{architecture}.context_length": length}),
        "capabilities": _capabilities(services, about),
        "modified_at": timestamp(files.modified),
    }


def _entry(name: str, about: ModelStatus, files: ModelFiles) -> JsonObject:
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


def _capabilities(services: Services, about: ModelStatus) -> list[str]:
    """What a model can do, as far as it is known before it is loaded."""
    found: list[str] = model_entry(services, about).get("capabilities", ["completion"])
    return found


def _context_length(services: Services, about: ModelStatus) -> int | None:
    served = services.models.served(about)
    return None if served is None else services.max_model_len(served)
