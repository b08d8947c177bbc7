"""What is served: /v1/models and /v1/models/{id}."""

import time
from typing import Any

from fastapi import APIRouter

from genai_server.api.catalog import Catalog, ChosenModel
from genai_server.api.services import TheServices
from genai_server.generation import Adapter
from genai_server.messages.status_file import ModelState, ModelStatus
from genai_server.openai_api.schemas.base import ErrorResponse

router = APIRouter(tags=["models"], responses={404: {"model": ErrorResponse}})


@router.get("/v1/models")
@router.get("/models", include_in_schema=False)
async def list_models(services: TheServices) -> dict[str, Any]:
    """The models, loaded or not, their aliases and their adapters."""
    found = []
    for about in services.models.statuses():
        entry = model_entry(services.models, about)
        found += [entry, *({**entry, "id": alias} for alias in about.aliases)]
        found += [adapter_entry(services.models, about, adapter) for adapter in about.adapters]
    return {"object": "list", "data": found}


@router.get("/v1/models/{model:path}")
@router.get("/models/{model:path}", include_in_schema=False)
async def get_model(model: str, services: TheServices) -> dict[str, Any]:
    """One model or adapter."""
    chosen = services.models.choose(model)
    if chosen.adapter is None:
        return {**model_entry(services.models, chosen.about), "id": model}
    return {**adapter_entry(services.models, chosen.about, chosen.adapter), "id": model}


def adapter_entry(models: Catalog, about: ModelStatus, adapter: Adapter) -> dict[str, Any]:
    """An adapter in the form of ModelEntry."""
    id = ChosenModel(about, adapter).id
    return {**model_entry(models, about), "id": id, "root": id, "parent": about.name}


def model_entry(models: Catalog, about: ModelStatus) -> dict[str, Any]:
    """A model in the form of ModelEntry."""
    engines = models.engine_statuses(about)
    served = models.served(about)
    state = about.state
    if state == ModelState.READY and served is not None and not served.takes_work and served.error is None:
        state = ModelState.LOADING
    entry: dict[str, Any] = {
        "id": about.name,
        "object": "model",
        "created": about.created,
        "owned_by": "genai-server",
        "root": about.name,
        "state": state,
    }
    if served is not None and served.is_readable:
        entry["chat"] = served.codec.has_chat_template
    errors = [engine.error for engine in engines if engine.error is not None]
    if served is not None and served.error is not None:
        errors.append(f"the text side {served.error}")
    if state == ModelState.LOADING:
        entry["loading_seconds"] = round(time.time() - min(engine.since for engine in engines), 1)
    if errors:
        entry["error"] = "; ".join(errors)
    return entry
