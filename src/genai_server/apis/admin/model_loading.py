"""Admin endpoints that load models, unload them and give them aliases while the server runs."""

import math
from typing import Any

from genai_server.apis.admin.engine_calls import admin_router
from genai_server.apis.admin.schemas import AliasRequest, LoadModelRequest, UnloadModelRequest
from genai_server.apis.models.routes import model_entry
from genai_server.errors import ChatTemplateError, ConfigurationError, ModelLoadFailed, ModelTooLarge, quoted
from genai_server.generation.dependencies import ServicesDep
from genai_server.messages.commands import LoadModel, SetAlias, UnloadModel
from genai_server.messages.server_status import ModelState

router = admin_router()


@router.post("/v1/admin/models/load")
async def load_model(body: LoadModelRequest, services: ServicesDep) -> dict[str, Any]:
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
    """Unload a model; responds when its engine processes have ended."""
    status = services.models.find(body.name, param="name")
    timeout = float(services.settings.drain_timeout) if body.timeout is None else body.timeout
    await services.models.command(UnloadModel(status.name, timeout))
    if body.wait is not False:
        await services.models.gone(status)
    return {"id": status.name, "object": "model", "unloaded": body.wait is not False}


@router.post("/v1/admin/models/alias")
async def set_alias(body: AliasRequest, services: ServicesDep) -> dict[str, Any]:
    """Add an alias for a model, or remove it if `name` is null."""
    name = None if body.name is None else services.models.find(body.name, param="name").name
    await services.models.command(SetAlias(body.alias, name))
    return {"id": body.alias, "object": "model", "root": name}
