"""The operator's endpoints that load and unload LoRA adapters of models while the server runs."""

import contextlib
import math
import secrets
from typing import Any

from fastapi import APIRouter, Depends

from genai_server.api.auth import require_admin
from genai_server.api.inquiry import ask
from genai_server.api.models import adapter_entry
from genai_server.api.services import Services, TheServices
from genai_server.engines.board import ModelStatus
from genai_server.engines.control import AddAdapter, RemoveAdapter
from genai_server.engines.operator import Operator
from genai_server.errors import InvalidField, ModelNotFound, NoEngineReady
from genai_server.generation import Adapter
from genai_server.openai_api.schemas.base import ErrorResponse
from genai_server.openai_api.schemas.models import LoadAdapterRequest, UnloadAdapterRequest

router = APIRouter(
    tags=["admin"],
    dependencies=[Depends(require_admin)],
    responses={code: {"model": ErrorResponse} for code in (400, 403, 404, 503)},
)


@router.post("/v1/admin/adapters/load")
async def load_adapter(body: LoadAdapterRequest, services: TheServices) -> dict[str, Any]:
    """Let requests choose the adapter in a file of this machine; answers once all devices have it, or why they do not.

    A model that is loaded on demand is, for only its engines know what fits it.
    """
    models = services.models
    about = models.find(body.model)
    if body.name in (adapter.name for adapter in about.adapters):
        raise InvalidField(f"name {body.name!r} is an adapter of model {about.name!r}; unload it first", param="name")
    await models.serving(about.name, services.settings.load_timeout or math.inf)
    adapter = Adapter(body.name, body.path, secrets.token_hex(8))

    async def load(operator: Operator) -> None:
        await operator.load_adapter(adapter)

    try:
        await ask(models.engines(about.name), load)
        await models.command(AddAdapter(about.name, adapter))
    except BaseException:
        await _unload(services, about, adapter)
        raise
    return adapter_entry(models, models.find(about.name), adapter)


@router.post("/v1/admin/adapters/unload")
async def unload_adapter(body: UnloadAdapterRequest, services: TheServices) -> dict[str, Any]:
    """Let no more requests choose an adapter; those that have it go on to their end, and then its memory is free."""
    about = services.models.find(body.model)
    adapter = next((adapter for adapter in about.adapters if adapter.name == body.name), None)
    if adapter is None:
        known = ", ".join(adapter.name for adapter in about.adapters) or "none"
        raise ModelNotFound(f"model {about.name!r} has no adapter {body.name!r}; it has: {known}", param="name")
    await services.models.command(RemoveAdapter(about.name, adapter.id))
    running = await _unload(services, about, adapter)
    return {"id": f"{about.name}:{adapter.name}", "object": "model", "unloaded": True, "running": running}


async def _unload(services: Services, about: ModelStatus, adapter: Adapter) -> list[str]:
    """Have all engines forget it; returns the names of the requests that still have it."""

    async def unload(operator: Operator) -> list[str]:
        return await operator.unload_adapter(adapter.id)

    with contextlib.suppress(NoEngineReady, ModelNotFound):  # what does not run has none
        replies = await ask(services.models.engines(about.name), unload)
        return sorted({request_id for _, request_ids in replies for request_id in request_ids})
    return []
