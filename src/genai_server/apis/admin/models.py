"""Admin endpoints about models: load and unload models and LoRA adapters while the server runs, give models aliases,
and list the models in GENAI_MODELS_DIR or in a repository of the Hugging Face Hub.
"""

import asyncio
import math
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from genai_server.apis.admin.engines import admin_router, ask
from genai_server.apis.admin.schemas import (
    AliasRequest,
    LoadAdapterRequest,
    LoadModelRequest,
    UnloadAdapterRequest,
    UnloadModelRequest,
)
from genai_server.apis.models import adapter_entry, model_entry
from genai_server.errors import (
    ChatTemplateError,
    ConfigurationError,
    InvalidField,
    ModelLoadFailed,
    ModelNotFound,
    ModelTooLarge,
    NoEngineReady,
    quoted,
)
from genai_server.generation.catalog import Catalog, ChosenModel, StoredModel, plain_name
from genai_server.generation.dependencies import Services, ServicesDep
from genai_server.messages.admin import LoadAdapter, UnloadAdapter
from genai_server.messages.generation_request import Adapter
from genai_server.messages.server_status import ModelState, ModelStatus
from genai_server.messages.supervisor_protocol import AddAdapter, LoadModel, RemoveAdapter, SetAlias, UnloadModel

router = admin_router()
stored_router = admin_router(500)


@router.post("/v1/admin/models/load")
async def load_model(body: LoadModelRequest, services: ServicesDep) -> dict[str, Any]:
    """Load a model from a directory on the server, and serve it under the name `name`.

    Responds with the model's entry when the model is ready, or with an error when it has failed to load; with `wait`
    false, responds at once.
    """
    devices = (body.device or services.settings.device).split(",")
    template = body.chat_template or ""
    try:
        await services.models.check_text(body.path, devices, template)
    except ChatTemplateError as error:
        raise ModelLoadFailed(f"chat_template {error.message}", param="chat_template") from None
    except ConfigurationError as error:
        raise ModelLoadFailed(error.message, param="path") from None
    try:
        await services.models.command(
            LoadModel(body.name, body.path, devices, template, draft_model=body.draft_model or "")
        )
    except ConfigurationError as error:
        raise ModelLoadFailed(error.message) from None
    if body.wait is not False:
        try:
            await services.models.loaded(body.name, services.settings.load_timeout or math.inf)
        except ModelTooLarge as error:
            await services.models.command(UnloadModel(body.name, 0))
            raise ModelLoadFailed(error.message, param="path") from None
    status = services.models.find(body.name)
    entry = model_entry(services, status)
    if entry["state"] != "ready" and "error" in entry:
        if status.state != ModelState.FAILED:  # only this process failed; the engines would keep their memory
            await services.models.command(UnloadModel(status.name, 0))
        field = "draft_model" if entry["error"].startswith("draft_model=") else "path"
        raise ModelLoadFailed(f"model {quoted(body.name)} cannot be loaded: {entry['error']}", param=field)
    return entry


@router.post("/v1/admin/models/unload")
async def unload_model(body: UnloadModelRequest, services: ServicesDep) -> dict[str, Any]:
    """Stop serving a model and free its memory. Responds when the model's engine processes have ended; with `wait`
    false, responds at once.
    """
    status = services.models.find(body.name, param="name")
    timeout = float(services.settings.drain_timeout) if body.timeout is None else body.timeout
    await services.models.command(UnloadModel(status.name, timeout))
    if body.wait is not False:
        await services.models.gone(status)
    return {"id": status.name, "object": "model", "unloaded": body.wait is not False}


@router.post("/v1/admin/models/alias")
async def set_alias(body: AliasRequest, services: ServicesDep) -> dict[str, Any]:
    """Let clients request the model `name` by the name `alias`, too. If `name` is null, remove the alias."""
    name = None if body.name is None else services.models.find(body.name, param="name").name
    await services.models.command(SetAlias(body.alias, name))
    return {"id": body.alias, "object": "model", "root": name}


@router.post("/v1/admin/adapters/load")
async def load_adapter(body: LoadAdapterRequest, services: ServicesDep) -> dict[str, Any]:
    """Load a LoRA adapter from a file on the server; responds when all devices have loaded it. Returns the adapter's
    entry in the list of models.

    If the model to which the adapter belongs is loaded on demand, the model is loaded first, because only its engines
    can check whether the adapter fits.
    """
    models = services.models
    status = models.find(body.model)
    if body.name in (adapter.name for adapter in status.adapters):
        raise InvalidField(
            "name", f"{quoted(body.name)} has already been loaded for model {quoted(status.name)}; unload it first"
        )
    await models.serving(ChosenModel(status), services.settings.load_timeout or math.inf)
    adapter = Adapter(body.name, body.path, secrets.token_hex(8))
    try:
        await ask(models.engines(status.name), lambda number: LoadAdapter(number, adapter), needs_all=True)
        await models.command(AddAdapter(status.name, adapter))
    except BaseException:
        await _unload_adapter(services, status, adapter)
        raise
    return adapter_entry(services, models.find(status.name), adapter)


@router.post("/v1/admin/adapters/unload")
async def unload_adapter(body: UnloadAdapterRequest, services: ServicesDep) -> dict[str, Any]:
    """Unload a LoRA adapter, so that new requests cannot use it. Its memory is freed when the running requests that use
    it have ended; the field `running` of the response lists the ids of these requests.
    """
    status = services.models.find(body.model)
    adapter = next((adapter for adapter in status.adapters if adapter.name == body.name), None)
    if adapter is None:
        names = ", ".join(adapter.name for adapter in status.adapters) or "none"
        raise ModelNotFound(
            f"model {quoted(status.name)} has no adapter {quoted(body.name)}; it has: {names}", param="name"
        )
    await services.models.command(RemoveAdapter(status.name, adapter.id))
    running = await _unload_adapter(services, status, adapter)
    return {"id": f"{status.name}:{adapter.name}", "object": "model", "unloaded": True, "running": running}


async def _unload_adapter(services: Services, status: ModelStatus, adapter: Adapter) -> list[str]:
    """Tell all running engines of a model to unload the LoRA adapter, and return the ids of the requests that still use
    it. If no engine of the model runs, the list is empty.
    """
    with suppress(NoEngineReady, ModelNotFound):  # an engine that is not running has no adapters
        replies = await ask(services.models.engines(status.name), lambda number: UnloadAdapter(number, adapter.id))
        return sorted({request_id for _, reply in replies for request_id in reply.request_ids})
    return []


@stored_router.get("/v1/admin/models/stored")
async def list_stored_models(services: ServicesDep) -> dict[str, Any]:
    """List the model directories in GENAI_MODELS_DIR, whether the models are served or not.

    In each entry, `size` is the size of the directory in bytes, `source` is the repository or directory from which it
    was copied, and `served` is the name under which the model is served; both may be null. The response's field
    `memory` is the size in bytes of the memory into which models are loaded; it is null for a device with memory of its
    own.
    """
    models = await asyncio.to_thread(services.store.stored)
    directory = str(services.store.directory)
    memory = services.store.memory
    return {
        "object": "list",
        "directory": directory,
        "memory": memory,
        "data": [_stored_entry(model, services.models) for model in models],
    }


@stored_router.get("/v1/admin/models/variants")
async def list_variants(repository: str, services: ServicesDep) -> dict[str, Any]:
    """List the models in a repository of the Hugging Face Hub. `repository` is its name, such as `OWNER/NAME`.

    In each entry, `name` is what to send to `/api/pull` to download the model, and `size` is the size of its files in
    bytes. `for_device` says whether the model is the best one for the server's device, judged by the name of the
    model's folder; it is null if the name mentions no device. `memory` is the number of bytes that the loaded weights
    take, without the KV cache. `fits` says whether the server has that much memory; it is null for a device with memory
    of its own.
    """
    name = plain_name(repository)
    models = await asyncio.to_thread(services.store.variants, name)
    memory = services.store.memory
    variants = [
        {
            "name": f"{name}:{model.folder}" if model.folder else name,
            "folder": model.folder,
            "size": model.size,
            "for_device": model.for_device,
            "memory": model.memory,
            "fits": None if memory is None else model.memory <= memory,
        }
        for model in models
    ]
    return {"object": "list", "repository": name, "data": variants}


def _stored_entry(stored: StoredModel, models: Catalog) -> dict[str, Any]:
    served = next((status.name for status in models.statuses() if Path(status.path).absolute() == stored.path), None)
    return {
        "id": stored.path.name,
        "object": "model",
        "path": str(stored.path),
        "size": stored.size,
        "source": stored.source or None,
        "served": served,
    }
