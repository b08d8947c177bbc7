"""The lists of models: the endpoints /v1/models and /v1/models/{id}, in OpenAI's or Anthropic's format, and LM Studio's
/api/v0/models and /api/v1/models (https://lmstudio.ai/docs/developer/rest), in which clients read a model's state and
context length. `model_entry` creates the entry for a model, also for other endpoints. `read_files` reads what a model's
directory says about the model without loading it.

LM Studio's v0 endpoints for generation and embeddings are aliases of OpenAI's endpoints and are defined in their
modules.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request

from genai_server.apis.messages.errors import speaks_anthropic
from genai_server.apis.shared.router import error_responses
from genai_server.generation.catalog import ChosenModel, names_of
from genai_server.generation.dependencies import Services, ServicesDep
from genai_server.generation.prompts import infill_tokens
from genai_server.http.json_response import JsonObject
from genai_server.messages.generation_request import Adapter
from genai_server.messages.server_status import ANY_NAME, ModelState, ModelStatus
from genai_server.model_files.pooling_model import Task
from genai_server.model_files.speech_and_vision import Medium
from genai_server.text.codec import TextCodec

_CONFIG = "genai_config.json"


@dataclass(frozen=True)
class ModelFiles:
    """What the directory of a model says about the model without loading it: the size of its files in bytes, a digest,
    the time of the last change, the model family and the context length in tokens. `read_files` creates it.
    """

    # In bytes.
    size: int
    # Changes with the files' names, sizes and times.
    digest: str
    modified: datetime
    # The model family, such as qwen2; "" if unknown.
    family: str
    # In tokens; None if unknown.
    context_length: int | None


def read_files(status: ModelStatus) -> ModelFiles:
    """Read the size, the dates and the configuration of a model's directory, without loading the model. A missing
    directory counts as empty. Reads files, and therefore blocks.
    """
    try:
        stats = {path.name: path.stat() for path in Path(status.path).iterdir() if path.is_file()}
    except (OSError, ValueError):  # a scripted device needs no directory
        stats = {}
    listed = sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items())
    digest = hashlib.sha256(json.dumps([status.name, *listed]).encode()).hexdigest()
    modified = max((stat.st_mtime for stat in stats.values()), default=status.created)
    size = sum(stat.st_size for stat in stats.values())
    config = _config(Path(status.path) / _CONFIG)
    family, length = config.get("type"), config.get("context_length")
    return ModelFiles(
        size,
        digest,
        datetime.fromtimestamp(modified, UTC),
        family if isinstance(family, str) else "",
        length if type(length) is int and length > 0 else None,
    )


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return config if isinstance(config, dict) else {}


# What taking something besides text is called in `capabilities`.
_ABILITIES = {Medium.IMAGE: "vision", Medium.AUDIO: "audio"}
# The levels of effort in Anthropic's API.
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
router = APIRouter(tags=["models"], responses=error_responses(404))


@router.get("/v1/models")
@router.get("/models", include_in_schema=False)
async def list_models(request: Request, services: ServicesDep) -> dict[str, Any]:
    """List the models, whether they are loaded or not, in OpenAI's format, or in Anthropic's for clients of Anthropic's
    API. Each alias and LoRA adapter has an entry of its own. Models that failed to load are left out.
    """
    models = []
    for status in services.models.usable():
        entry = model_entry(services, status)
        entries = [entry, *({**entry, "id": alias} for alias in status.aliases if alias != ANY_NAME)]
        entries += [adapter_entry(services, status, adapter) for adapter in status.adapters]
        models += [_in_format(request, services, status, entry) for entry in entries]
    if not speaks_anthropic(request.scope):
        return {"object": "list", "data": models}
    ids = [entry["id"] for entry in models] or [None]
    return {"data": models, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}


@router.get("/v1/models/{model:path}")
@router.get("/models/{model:path}", include_in_schema=False)
async def get_model(model: str, request: Request, services: ServicesDep) -> dict[str, Any]:
    """Get the entry for one model, alias or LoRA adapter, with its state and limits, in OpenAI's format, or in
    Anthropic's for clients of Anthropic's API.
    """
    chosen = services.models.choose(model)
    if chosen.adapter is None:
        entry = model_entry(services, chosen.about)
    else:
        entry = adapter_entry(services, chosen.about, chosen.adapter)
    entry["id"] = model
    return _in_format(request, services, chosen.about, entry)


def adapter_entry(services: Services, status: ModelStatus, adapter: Adapter) -> dict[str, Any]:
    """Return the entry for a LoRA adapter in the list of models, in OpenAI's format. The entry has the state and the
    limits of the model to which the adapter belongs; the field `parent` has the name of this model.
    """
    id = ChosenModel(status, adapter).id
    return {**model_entry(services, status), "id": id, "root": id, "parent": status.name}


def model_entry(services: Services, status: ModelStatus) -> dict[str, Any]:
    """Return the entry for a model in the list of models, in OpenAI's format with additional fields. Fields are omitted
    as long as their values are unknown.

    `root` is the model's own name, also in entries for aliases. `chat` is false for a model without a chat template,
    which accepts raw prompts only. `capabilities` has llama.cpp's and Ollama's terms; before the model is loaded, only
    the task, `vision` and `audio`. `dimensions` is the length of an embedding. `max_model_len` and `context_length`
    limit the tokens of prompt and answer together, and `limited_by` says what sets this limit. `default_max_tokens` is
    the maximum number of tokens of an answer to a request that sets none. `loading_seconds` is how long the model has
    been loading, `error` why it failed to load, and `shortage` why there was no memory for it at the last request.
    """
    models = services.models
    engines = models.engine_statuses(status)
    served = models.served(status)
    state = models.state(status)
    entry: dict[str, Any] = {
        "id": status.name,
        "object": "model",
        "created": status.created,
        "owned_by": "genai-server",
        "root": status.name,
        "state": state,
    }
    if status.task is not Task.GENERATE:
        entry |= {"chat": False, "capabilities": [status.task.value]}
    elif served is not None and served.is_readable:
        entry["chat"] = served.codec.has_chat_template
        entry["capabilities"] = _capabilities(served.codec)
    else:
        entry["capabilities"] = ["completion", *([] if status.medium is None else [_ABILITIES[status.medium]])]
    if served is not None and served.is_readable and (pooling := served.codec.pooling) is not None:
        entry |= {"dimensions": pooling.dimensions} if pooling.dimensions else {}
    if served is not None and (length := served.max_length) is not None:
        entry |= {"max_model_len": length, "context_length": length, "limited_by": served.limited_by}
        if services.settings.default_max_tokens:
            entry["default_max_tokens"] = services.settings.default_max_tokens
    errors = [engine.error for engine in engines if engine.error is not None]
    if served is not None and served.error is not None:
        errors.append(f"the text side {served.error}")
    if state == ModelState.LOADING:
        entry["loading_seconds"] = round(time.time() - min(engine.since for engine in engines), 1)
    if status.shortage:
        entry["shortage"] = status.shortage
    if errors:
        entry["error"] = "; ".join(errors)
    return entry


def _in_format(request: Request, services: Services, status: ModelStatus, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry for a model in the format that the client of the request expects: converted to Anthropic's
    format for a client of Anthropic's API, otherwise `entry` unchanged, which is in OpenAI's format.
    """
    if not speaks_anthropic(request.scope):
        return entry
    served = services.models.served(status)
    return anthropic_entry(entry, served.codec if served is not None and served.is_readable else None)


def _capabilities(codec: TextCodec) -> list[str]:
    """Return what a loaded model can do, in llama.cpp's and Ollama's terms, such as "completion", "tools" and "vision".
    `codec` has the model's tokenizer and chat template.
    """
    takes_tools = codec.writer.takes_tools and codec.dialect.tool_format is not None
    capabilities = {
        "completion": True,
        "insert": bool(infill_tokens(codec)),
        "tools": takes_tools,
        **{
            name: codec.vision is not None and codec.vision.medium is medium and codec.has_chat_template
            for medium, name in _ABILITIES.items()
        },
        "thinking": codec.dialect.reasoning is not None,
    }
    return [name for name, is_supported in capabilities.items() if is_supported]


def anthropic_entry(entry: Mapping[str, Any], codec: TextCodec | None) -> JsonObject:
    """Return the entry for a model or LoRA adapter in Anthropic's format. The argument `entry` is in OpenAI's format.

    `codec` has the tokenizer and chat template of a loaded model. It is None for a model that is not loaded, and the
    field `capabilities` is then null.
    """
    length = entry.get("max_model_len")
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": datetime.fromtimestamp(entry["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": length,
        "max_tokens": length,
        "capabilities": None if codec is None else _anthropic_capabilities(entry, codec),
    }


def _anthropic_capabilities(entry: Mapping[str, Any], codec: TextCodec) -> JsonObject:
    """Return the field `capabilities` of a model's entry in Anthropic's format, which says what the endpoint
    /v1/messages supports with this model. `entry` is the model's entry in OpenAI's format; `codec` has its chat
    template.

    A level of effort is supported if the chat template takes it; requests with another level get the nearest one.
    Thinking of type `enabled` is supported if the template has a variable for it. All models that can chat accept the
    type `disabled`, as Anthropic's definition requires.
    """
    capabilities, chats = entry["capabilities"], entry["chat"]
    variables = codec.writer.thinking
    efforts = variables.efforts if chats else {}
    thinks = chats and "thinking" in capabilities
    is_switched = thinks and bool(efforts or variables.switch_on)
    unsupported = _support(False)
    types = {"adaptive": thinks, "between_tools": False, "disabled": chats, "enabled": is_switched}
    return {
        "batch": unsupported,
        "citations": unsupported,
        "code_execution": unsupported,
        "context_management": unsupported,
        "effort": {**_support(bool(efforts)), **{level: _support(level in efforts) for level in _EFFORTS}},
        "image_input": _support("vision" in capabilities),
        "pdf_input": unsupported,
        "server_tools": {**unsupported, "code_execution": unsupported, "web_search": unsupported},
        "structured_outputs": _support(chats),
        "thinking": {**_support(thinks), "types": {name: _support(is_taken) for name, is_taken in types.items()}},
    }


def _support(supported: bool) -> JsonObject:
    return {"supported": supported}


lm_studio_router = APIRouter(tags=["models"], responses=error_responses(404))
# The model types of each version of the API. No type exists for reranking, so such models are not listed.
_TYPES_V0 = {Task.GENERATE: "llm", Task.EMBED: "embeddings"}
# The type in the v0 API of a model that also takes images.
_VISION_V0 = "vlm"
# Clients read one of the two values of LM Studio, "gguf" and "mlx", of which neither is true here.
_COMPATIBILITY = "gguf"
_TYPES_V1 = {Task.GENERATE: "llm", Task.EMBED: "embedding"}


@lm_studio_router.get("/api/v0/models")
async def list_models_v0(services: ServicesDep) -> dict[str, Any]:
    """List the models that generate text or compute embeddings, whether they are loaded or not, in the format of LM
    Studio's v0 API, with an entry for each alias and LoRA adapter. Models that failed to load are left out.
    """
    return {"object": "list", "data": await _listed(services, _in_v0)}


@lm_studio_router.get("/api/v0/models/{model:path}")
async def get_model_v0(model: str, services: ServicesDep) -> dict[str, Any]:
    """Get the entry for one model, alias or LoRA adapter, in the format of LM Studio's v0 API."""
    status = services.models.choose(model).about
    return _in_v0(services, model, status, await asyncio.to_thread(read_files, status))


@lm_studio_router.get("/api/v1/models")
async def list_models_v1(services: ServicesDep) -> dict[str, Any]:
    """List the models that generate text or compute embeddings, whether they are loaded or not, in the format of LM
    Studio's v1 API, with an entry for each alias and LoRA adapter. Models that failed to load are left out.
    """
    return {"models": await _listed(services, _in_v1)}


async def _listed(
    services: Services, entry: Callable[[Services, str, ModelStatus, ModelFiles], JsonObject]
) -> list[JsonObject]:
    """Return the entries of all models in LM Studio's lists, with one entry for each name of a model, including aliases
    and LoRA adapters. `entry` is a function that creates the entry for one name. Models that neither generate text nor
    compute embeddings, such as reranking models, are left out, because LM Studio has no type for them.
    """
    entries = []
    for status in services.models.usable():
        if status.task in _TYPES_V0:
            files = await asyncio.to_thread(read_files, status)
            entries += [entry(services, name, status, files) for name in names_of(status)]
    return entries


def _in_v0(services: Services, name: str, status: ModelStatus, files: ModelFiles) -> JsonObject:
    """Return the entry for the model, alias or LoRA adapter `name` in the format of LM Studio's /api/v0/models. The
    model need not be loaded.
    """
    entry = model_entry(services, status)
    is_loaded, capabilities = entry["state"] == ModelState.READY, entry["capabilities"]
    length = _context_length(services, entry, files)
    return {
        "id": name,
        "object": "model",
        "type": _VISION_V0 if "vision" in capabilities else _TYPES_V0.get(status.task, status.task.value),
        "publisher": _publisher(name),
        "arch": files.family,
        "compatibility_type": _COMPATIBILITY,
        "quantization": "unknown",
        "state": "loaded" if is_loaded else "not-loaded",
        "max_context_length": length,
        **({"loaded_context_length": length} if is_loaded else {}),
        "capabilities": ["tool_use"] if "tools" in capabilities else [],
    }


def _in_v1(services: Services, name: str, status: ModelStatus, files: ModelFiles) -> JsonObject:
    """Return the entry for the model, alias or LoRA adapter `name` in the format of LM Studio's /api/v1/models. The
    model need not be loaded. The field `format` of the entry is null, because LM Studio has no value for ONNX.
    """
    entry = model_entry(services, status)
    capabilities, length = entry["capabilities"], _context_length(services, entry, files)
    more: JsonObject = {}
    if status.task is Task.GENERATE:
        more["architecture"] = files.family or None
        more["capabilities"] = {"vision": "vision" in capabilities, "trained_for_tool_use": "tools" in capabilities}
    instance = {"id": name, "config": {"context_length": length}}
    return {
        "type": _TYPES_V1[status.task],
        "publisher": _publisher(name),
        "key": name,
        "display_name": name,
        "quantization": None,
        "size_bytes": files.size,
        "params_string": None,
        "loaded_instances": [instance] if entry["state"] == ModelState.READY else [],
        "max_context_length": length,
        "format": None,
        **more,
    }


def _context_length(services: Services, entry: JsonObject, files: ModelFiles) -> int | None:
    """Return the maximum number of tokens of prompt and answer together; None if it is unknown until the model is
    loaded.

    `entry` is the model's entry in /v1/models, which has the number for a loaded model. For other models, `files` has
    the context length from the model's directory.
    """
    return entry.get("max_model_len") or services.settings.within(files.context_length)


def _publisher(name: str) -> str:
    return name.partition("/")[0] if "/" in name else "genai-server"
