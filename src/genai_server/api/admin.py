"""The operator's endpoints: onnxruntime-genai's runtime options, on running devices."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends

from genai_server.api.auth import require_admin
from genai_server.api.inquiry import ask, by_device
from genai_server.api.services import Services, services
from genai_server.engines.operator import Operator
from genai_server.errors import InvalidField, RequestNotFound
from genai_server.messages.operator import Reply
from genai_server.openai_api.schemas.admin import RuntimeOptionsRequest
from genai_server.openai_api.schemas.base import ErrorResponse

router = APIRouter(
    tags=["admin"],
    dependencies=[Depends(require_admin)],
    responses={code: {"model": ErrorResponse} for code in (400, 403, 404, 503)},
)


@router.get("/v1/admin/runtime_options")
async def get_runtime_options(services: Annotated[Services, Depends(services)]) -> dict[str, Any]:
    """The state of the runtime options of each device."""
    return by_device(await ask(services.models.engines(), Operator.runtime_options), _options)


@router.post("/v1/admin/runtime_options")
async def set_runtime_options(
    body: RuntimeOptionsRequest, services: Annotated[Services, Depends(services)]
) -> dict[str, Any]:
    """Set `terminate_session` or `enable_profiling`, or both, on all devices, on one, or for one request."""
    given = body.model_dump(include={"terminate_session", "enable_profiling"}, exclude_none=True)
    if not given:
        raise InvalidField("give terminate_session or enable_profiling", param="terminate_session")
    engines = services.models.engines(body.model, body.device)
    if body.terminate_session == "0" and body.request_id is not None:
        raise InvalidField('terminate_session "0" is for devices: a request that was ended is gone', param="request_id")
    # Profiling first: what is terminated is there no more.
    for option, value in sorted(given.items()):

        async def set_option(operator: Operator, option: str = option, value: str = value) -> Reply:
            return await operator.set_runtime_option(option, value, body.request_id)

        replies = await ask(engines, set_option)
        if not any(reply.matched for _, reply in replies):
            raise RequestNotFound(f"no request {body.request_id!r} is running or waiting", param="request_id")
        for _, reply in replies:
            if reply.refused is not None:
                raise InvalidField(reply.refused, param=option)
    return by_device(replies, _options)


@router.post("/v1/admin/reset_prefix_cache")
async def reset_prefix_cache(services: Annotated[Services, Depends(services)]) -> dict[str, Any]:
    """Forget the past of all requests that have ended; answers how many slots of each device had one."""
    slots = await ask(services.models.engines(), Operator.reset_prefix_cache)
    return by_device(slots, lambda number: {"slots": number})


def _options(reply: Reply) -> dict[str, Any]:
    requests = [msgspec.structs.asdict(request) for request in reply.options.requests]
    return msgspec.structs.asdict(reply.options) | {"requests": requests}
