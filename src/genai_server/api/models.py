"""What is served: /v1/models and /v1/models/{id}."""

from typing import Any

from fastapi import APIRouter

from genai_server.api.services import Services, TheServices
from genai_server.errors import ModelNotFound
from genai_server.openai_api.schemas.base import ErrorResponse

router = APIRouter(tags=["models"], responses={404: {"model": ErrorResponse}})


@router.get("/v1/models")
@router.get("/models", include_in_schema=False)
async def list_models(services: TheServices) -> dict[str, Any]:
    """The served models."""
    return {"object": "list", "data": [_model(services)]}


@router.get("/v1/models/{model}")
@router.get("/models/{model}", include_in_schema=False)
async def get_model(model: str, services: TheServices) -> dict[str, Any]:
    """One of them."""
    if model != services.settings.model_name:
        raise ModelNotFound(f"model {model[:100]!r} is not served; {services.settings.model_name!r} is", param="model")
    return _model(services)


def _model(services: Services) -> dict[str, Any]:
    return {
        "id": services.settings.model_name,
        "object": "model",
        "created": services.started,
        "owned_by": "genai-server",
    }
