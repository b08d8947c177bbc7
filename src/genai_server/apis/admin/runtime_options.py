"""Admin endpoints that change onnxruntime-genai's runtime options on running devices, and empty the prefix cache."""

from functools import partial
from typing import Any

import msgspec

from genai_server.apis.admin.engine_calls import admin_router, ask, ask_about, by_device, end_request_with_tools
from genai_server.apis.admin.schemas import RuntimeOptionsRequest
from genai_server.errors import InvalidField
from genai_server.generation.dependencies import ServicesDep
from genai_server.messages.admin import GetRuntimeOptions, ResetPrefixCache, RuntimeOptionsReply, SetRuntimeOption
from genai_server.messages.generation_request import FinishReason

router = admin_router(409)


@router.get("/v1/admin/runtime_options")
async def get_runtime_options(services: ServicesDep) -> dict[str, Any]:
    """Get the runtime options of each device."""
    return by_device(await ask(services.models.engines(), GetRuntimeOptions), _options)


@router.post("/v1/admin/runtime_options")
async def set_runtime_options(body: RuntimeOptionsRequest, services: ServicesDep) -> dict[str, Any]:
    """Set `terminate_session`, `enable_profiling` or both, on all devices, on one device, or for one request."""
    given = body.model_dump(include={"terminate_session", "enable_profiling"}, exclude_none=True)
    if not given:
        raise InvalidField("terminate_session", "or enable_profiling is required")
    engines = services.models.engines(body.model, body.device)
    if body.terminate_session == "0" and body.request_id is not None:
        raise InvalidField(
            "request_id", 'cannot be combined with terminate_session "0": a terminated request cannot be resumed'
        )
    tools = services.tools.client
    # Profiling comes first: a terminated request can no longer be profiled.
    for option, value in sorted(given.items()):
        terminates = option == "terminate_session" and value == "1"
        if body.request_id is None:
            replies = await ask(engines, partial(SetRuntimeOption, option=option, value=value))
            if terminates:
                model_devices = [(engine.model_name, engine.device) for engine in engines]
                await tools.find(model_devices=model_devices, end=FinishReason.TERMINATED)
        else:
            call = partial(_option_of_request, option=option, value=value)
            if terminates and await end_request_with_tools(
                engines, tools, body.request_id, FinishReason.TERMINATED, call
            ):
                replies = await ask(engines, GetRuntimeOptions)
            else:
                _, replies = await ask_about(engines, body.request_id, call)
        for _, reply in replies:
            if reply.refused is not None:
                raise InvalidField(option, f"cannot be set: {reply.refused}")
    return by_device(replies, _options)


@router.post("/v1/admin/reset_prefix_cache")
@router.post("/reset_prefix_cache")
async def reset_prefix_cache(services: ServicesDep) -> dict[str, Any]:
    """Remove the cached prefixes of all requests that have ended; returns the number of slots of each device that held
    one.
    """
    replies = await ask(services.models.engines(), ResetPrefixCache)
    return by_device(replies, lambda reply: {"slots": reply.slots})


def _option_of_request(number: int, name: str, is_unique: bool, *, option: str, value: str) -> SetRuntimeOption:
    return SetRuntimeOption(number, option, value, name, is_unique)


def _options(reply: RuntimeOptionsReply) -> dict[str, Any]:
    requests = [msgspec.structs.asdict(request) for request in reply.options.requests]
    return msgspec.structs.asdict(reply.options) | {"requests": requests}
