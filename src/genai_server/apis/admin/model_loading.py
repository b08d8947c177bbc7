"""Admin endpoints: load, unload and name models, and load and unload LoRA adapters, while the server runs."""

import math
import secrets
from contextlib import suppress
from typing import Any

from genai_server.apis.admin.engine_calls import admin_router, ask
from genai_server.apis.admin.schemas import (
    AliasRequest,
    LoadAdapterRequest,
    LoadModelRequest,
    UnloadAdapterRequest,
    UnloadModelRequest,
)
from genai_server.apis.models.routes import adapter_entry, model_entry
from genai_server.errors import (
    ChatTemplateError,
    ConfigurationError,
    InvalidField,
    ModelLoadFailed,
    ModelNotFound,
    NoEngineReady,
)
from genai_server.generation.catalog import ChosenModel
from genai_server.generation.dependencies import Services, TheServices
from genai_server.messages.admin import LoadAdapter, UnloadAdapter
from genai_server.messages.commands import AddAdapter, LoadModel, RemoveAdapter, SetAlias, UnloadModel
from genai_server.messages.generation_request import Adapter
from genai_server.messages.status_file import ModelState, ModelStatus
from genai_server.quoted_values import quoted

router = admin_router()


@router.post("/v1/admin/models/load")
async def load_model(body: LoadModelRequest, services: TheServices) -> dict[str, Any]:
    """Load a model from a directory on the server; responds when it is ready or has failed to load."""
    devices = (body.device or services.settings.device).split(",")
    template = body.chat_template or ""
    try:
        await services.models.check_text(body.path, devices, template)
    except ChatTemplateError as error:
        raise ModelLoadFailed(f"chat_template {error.message}", param="chat_template") from None
    except ConfigurationError as error:
        raise ModelLoadFailed(error.message, param="path") from None
    try:
        await services.models.command(LoadModel(body.name, body.path, devices, template))
    except ConfigurationError as error:
        raise ModelLoadFailed(error.message) from None
    if body.wait is not False:
        await services.models.loaded(body.name, services.settings.load_timeout or math.inf)
    about = services.models.find(body.name)
    entry = model_entry(services, about)
    if entry["state"] != "ready" and "error" in entry:
        if about.state != ModelState.FAILED:  # only this process failed; the engines would keep their memory
            await services.models.command(UnloadModel(about.name, 0))
        raise ModelLoadFailed(f"model {quoted(body.name)} cannot be loaded: {entry['error']}", param="path")
    return entry


@router.post("/v1/admin/models/unload")
async def unload_model(body: UnloadModelRequest, services: TheServices) -> dict[str, Any]:
    """Unload a model; responds when its processes have ended."""
    about = services.models.find(body.name, param="name")
    timeout = float(services.settings.drain_timeout) if body.timeout is None else body.timeout
    await services.models.command(UnloadModel(about.name, timeout))
    if body.wait is not False:
        await services.models.gone(about)
    return {"id": about.name, "object": "model", "unloaded": body.wait is not False}


@router.post("/v1/admin/models/alias")
async def set_alias(body: AliasRequest, services: TheServices) -> dict[str, Any]:
    """Add an alias for a model, or remove it if `name` is null."""
    name = None if body.name is None else services.models.find(body.name, param="name").name
    await services.models.command(SetAlias(body.alias, name))
    return {"id": body.alias, "object": "model", "root": name}


@router.post("/v1/admin/adapters/load")
async def load_adapter(body: LoadAdapterRequest, services: TheServices) -> dict[str, Any]:
    """Load an adapter from a file on the server; responds when all devices have loaded it.

    A model that is loaded on demand is loaded first: only its engines can check whether the adapter fits.
    """
    models = services.models
    about = models.find(body.model)
    if body.name in (adapter.name for adapter in about.adapters):
        raise InvalidField(
            f"name {quoted(body.name)} is an adapter of model {quoted(about.name)}; unload it first", param="name"
        )
    await models.serving(ChosenModel(about), services.settings.load_timeout or math.inf)
    adapter = Adapter(body.name, body.path, secrets.token_hex(8))
    try:
        await ask(models.engines(about.name), lambda number: LoadAdapter(number, adapter), needs_all=True)
        await models.command(AddAdapter(about.name, adapter))
    except BaseException:
        await _unload(services, about, adapter)
        raise
    return adapter_entry(services, models.find(about.name), adapter)


@router.post("/v1/admin/adapters/unload")
async def unload_adapter(body: UnloadAdapterRequest, services: TheServices) -> dict[str, Any]:
    """Unload an adapter for new requests; its memory is freed when the requests that use it have ended."""
    about = services.models.find(body.model)
    adapter = next((adapter for adapter in about.adapters if adapter.name == body.name), None)
    if adapter is None:
        known = ", ".join(adapter.name for adapter in about.adapters) or "none"
        raise ModelNotFound(
            f"model {quoted(about.name)} has no adapter {quoted(body.name)}; it has: {known}", param="name"
        )
    await services.models.command(RemoveAdapter(about.name, adapter.id))
    running = await _unload(services, about, adapter)
    return {"id": f"{about.name}:{adapter.name}", "object": "model", "unloaded": True, "running": running}


async def _unload(services: Services, about: ModelStatus, adapter: Adapter) -> list[str]:
    """Unload the adapter from all engines; returns the ids of the requests that still use it."""
    with suppress(NoEngineReady, ModelNotFound):  # an engine that is not running has no adapters
        replies = await ask(services.models.engines(about.name), lambda number: UnloadAdapter(number, adapter.id))
        return sorted({request_id for _, reply in replies for request_id in reply.request_ids})
    return []
