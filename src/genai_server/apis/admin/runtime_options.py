"""Admin endpoints: onnxruntime-genai's runtime options on running devices, and the prefix cache."""

from functools import partial
from typing import Any

import msgspec

from genai_server.apis.admin.engine_calls import admin_router, ask, by_device, find_request
from genai_server.apis.admin.schemas import RuntimeOptionsRequest
from genai_server.errors import InvalidField, RequestNotFound
from genai_server.generation.dependencies import TheServices
from genai_server.messages.admin import GetRuntimeOptions, ResetPrefixCache, RuntimeOptionsReply, SetRuntimeOption
from genai_server.quoted_values import quoted

router = admin_router(409)


@router.get("/v1/admin/runtime_options")
async def get_runtime_options(services: TheServices) -> dict[str, Any]:
    """The state of the runtime options of each device."""
    return by_device(await ask(services.models.engines(), GetRuntimeOptions), _options)


@router.post("/v1/admin/runtime_options")
async def set_runtime_options(body: RuntimeOptionsRequest, services: TheServices) -> dict[str, Any]:
    """Set `terminate_session`, `enable_profiling` or both, on all devices, on one device, or for one request."""
    given = body.model_dump(include={"terminate_session", "enable_profiling"}, exclude_none=True)
    if not given:
        raise InvalidField("terminate_session or enable_profiling is required", param="terminate_session")
    engines = services.models.engines(body.model, body.device)
    if body.terminate_session == "0" and body.request_id is not None:
        raise InvalidField(
            'terminate_session "0" applies to devices only: a terminated request cannot be resumed', param="request_id"
        )
    meant = None if body.request_id is None else (await find_request(engines, body.request_id)).unique_id
    # Profiling comes first: a terminated request can no longer be profiled.
    for option, value in sorted(given.items()):
        replies = await ask(engines, partial(SetRuntimeOption, option=option, value=value, unique_id=meant))
        if not any(reply.matched for _, reply in replies):
            raise RequestNotFound(f"no request {quoted(body.request_id)} is running or waiting", param="request_id")
        for _, reply in replies:
            if reply.refused is not None:
                raise InvalidField(reply.refused, param=option)
    return by_device(replies, _options)


@router.post("/v1/admin/reset_prefix_cache")
@router.post("/reset_prefix_cache")
async def reset_prefix_cache(services: TheServices) -> dict[str, Any]:
    """Drop the cached prefixes of all ended requests; returns how many slots of each device had one."""
    replies = await ask(services.models.engines(), ResetPrefixCache)
    return by_device(replies, lambda reply: {"slots": reply.slots})


def _options(reply: RuntimeOptionsReply) -> dict[str, Any]:
    requests = [msgspec.structs.asdict(request) for request in reply.options.requests]
    return msgspec.structs.asdict(reply.options) | {"requests": requests}
