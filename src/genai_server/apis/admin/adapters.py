"""Admin endpoints that load and unload LoRA adapters while the server runs."""

import math
import secrets
from contextlib import suppress
from typing import Any

from genai_server.apis.admin.engine_calls import admin_router, ask
from genai_server.apis.admin.schemas import LoadAdapterRequest, UnloadAdapterRequest
from genai_server.apis.models.routes import adapter_entry
from genai_server.errors import InvalidField, ModelNotFound, NoEngineReady, quoted
from genai_server.generation.catalog import ChosenModel
from genai_server.generation.dependencies import Services, ServicesDep
from genai_server.messages.admin import LoadAdapter, UnloadAdapter
from genai_server.messages.commands import AddAdapter, RemoveAdapter
from genai_server.messages.generation_request import Adapter
from genai_server.messages.server_status import ModelStatus

router = admin_router()


@router.post("/v1/admin/adapters/load")
async def load_adapter(body: LoadAdapterRequest, services: ServicesDep) -> dict[str, Any]:
    """Load a LoRA adapter from a file on the server; responds when all devices have loaded it.

    If the model is loaded on demand, it is loaded first, because only its engines can check whether the adapter fits.
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
        await _unload(services, status, adapter)
        raise
    return adapter_entry(services, models.find(status.name), adapter)


@router.post("/v1/admin/adapters/unload")
async def unload_adapter(body: UnloadAdapterRequest, services: ServicesDep) -> dict[str, Any]:
    """Unload a LoRA adapter for new requests. Its memory is freed when the running requests that use it have ended;
    `running` lists their ids.
    """
    status = services.models.find(body.model)
    adapter = next((adapter for adapter in status.adapters if adapter.name == body.name), None)
    if adapter is None:
        known = ", ".join(adapter.name for adapter in status.adapters) or "none"
        raise ModelNotFound(
            f"model {quoted(status.name)} has no adapter {quoted(body.name)}; it has: {known}", param="name"
        )
    await services.models.command(RemoveAdapter(status.name, adapter.id))
    running = await _unload(services, status, adapter)
    return {"id": f"{status.name}:{adapter.name}", "object": "model", "unloaded": True, "running": running}


async def _unload(services: Services, status: ModelStatus, adapter: Adapter) -> list[str]:
    """Unload the adapter from all engines of the model; returns the ids of the requests that still use it."""
    with suppress(NoEngineReady, ModelNotFound):  # an engine that is not running has no adapters
        replies = await ask(services.models.engines(status.name), lambda number: UnloadAdapter(number, adapter.id))
        return sorted({request_id for _, reply in replies for request_id in reply.request_ids})
    return []
