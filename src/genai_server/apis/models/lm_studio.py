"""The model lists of LM Studio's APIs, /api/v0/models and /api/v1/models (https://lmstudio.ai/docs/developer/rest).

Clients read a model's state and context length from them. LM Studio's v0 endpoints for generation and embeddings are
aliases of OpenAI's and are defined where those are.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from genai_server.apis.models.routes import ModelFiles, model_entry, read_files
from genai_server.apis.shared.router import error_responses
from genai_server.generation.catalog import names_of
from genai_server.generation.dependencies import Services, ServicesDep
from genai_server.http.json_response import JsonObject
from genai_server.messages.server_status import ModelState, ModelStatus
from genai_server.model_files.pooling_model import Task

router = APIRouter(tags=["models"], responses=error_responses(404))
# The model types of each version of the API. No type exists for reranking, so such models are not listed.
_TYPES_V0 = {Task.GENERATE: "llm", Task.EMBED: "embeddings"}
# The type in the v0 API of a model that also takes images.
_VISION_V0 = "vlm"
# Clients read one of the two values of LM Studio, "gguf" and "mlx", of which neither is true here.
_COMPATIBILITY = "gguf"
_TYPES_V1 = {Task.GENERATE: "llm", Task.EMBED: "embedding"}


@router.get("/api/v0/models")
async def list_models_v0(services: ServicesDep) -> dict[str, Any]:
    """List models, loaded or not, with their aliases and adapters, in the format of LM Studio's v0 API."""
    return {"object": "list", "data": await _listed(services, _in_v0)}


@router.get("/api/v0/models/{model:path}")
async def get_model_v0(model: str, services: ServicesDep) -> dict[str, Any]:
    """Get one model or adapter, in the format of LM Studio's v0 API."""
    status = services.models.choose(model).about
    return _in_v0(services, model, status, await asyncio.to_thread(read_files, status))


@router.get("/api/v1/models")
async def list_models_v1(services: ServicesDep) -> dict[str, Any]:
    """List models, loaded or not, with their aliases and adapters, in the format of LM Studio's v1 API."""
    return {"models": await _listed(services, _in_v1)}


async def _listed(
    services: Services, entry: Callable[[Services, str, ModelStatus, ModelFiles], JsonObject]
) -> list[JsonObject]:
    """The entries of all models that clients may use. A model has an entry for each of its names, including aliases and
    adapters. `entry` creates the entry for one name.
    """
    found = []
    for status in services.models.usable():
        if status.task in _TYPES_V0:
            files = await asyncio.to_thread(read_files, status)
            found += [entry(services, name, status, files) for name in names_of(status)]
    return found


def _in_v0(services: Services, name: str, status: ModelStatus, files: ModelFiles) -> JsonObject:
    """The entry for a model or alias `name`, which need not be loaded, in the format of /api/v0/models."""
    known = model_entry(services, status)
    is_loaded, can = known["state"] == ModelState.READY, known["capabilities"]
    length = _context_length(services, known, files)
    return {
        "id": name,
        "object": "model",
        "type": _VISION_V0 if "vision" in can else _TYPES_V0.get(status.task, status.task.value),
        "publisher": _publisher(name),
        "arch": files.family,
        "compatibility_type": _COMPATIBILITY,
        "quantization": "unknown",
        "state": "loaded" if is_loaded else "not-loaded",
        "max_context_length": length,
        **({"loaded_context_length": length} if is_loaded else {}),
        "capabilities": ["tool_use"] if "tools" in can else [],
    }


def _in_v1(services: Services, name: str, status: ModelStatus, files: ModelFiles) -> JsonObject:
    """The entry for a model or alias `name`, which need not be loaded, in the format of /api/v1/models. Its field
    `format` is null, because LM Studio has no value for ONNX.
    """
    known = model_entry(services, status)
    can, length = known["capabilities"], _context_length(services, known, files)
    more: JsonObject = {}
    if status.task is Task.GENERATE:
        more["architecture"] = files.family or None
        more["capabilities"] = {"vision": "vision" in can, "trained_for_tool_use": "tools" in can}
    instance = {"id": name, "config": {"context_length": length}}
    return {
        "type": _TYPES_V1[status.task],
        "publisher": _publisher(name),
        "key": name,
        "display_name": name,
        "quantization": None,
        "size_bytes": files.size,
        "params_string": None,
        "loaded_instances": [instance] if known["state"] == ModelState.READY else [],
        "max_context_length": length,
        "format": None,
        **more,
    }


def _context_length(services: Services, known: JsonObject, files: ModelFiles) -> int | None:
    """Maximum number of tokens of prompt and answer together; None if it is unknown until the model is loaded.

    `known` is the model's entry in /v1/models. For a model that is not loaded, `files` has the context length from the
    model's directory.
    """
    return known.get("max_model_len") or services.settings.within(files.context_length)


def _publisher(name: str) -> str:
    return name.partition("/")[0] if "/" in name else "genai-server"
