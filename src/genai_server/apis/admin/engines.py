"""Sends admin calls from an API process to engines, the processes that run models on devices.

For the admin endpoints in other modules, this module has their router (`admin_router`), a call to several engines at
once (`ask`), and calls about one request, which is found by its id (`ask_about`, `cancel_request`, `end_reasoning`).
Its own endpoints show and change onnxruntime-genai's runtime options on running devices, and empty the prefix cache.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends

from genai_server.apis.admin.schemas import RuntimeOptionsRequest
from genai_server.apis.shared.router import error_responses
from genai_server.engine_client.client import EngineClient
from genai_server.errors import AmbiguousRequest, InvalidField, NoEngineReady, RequestNotFound, quoted
from genai_server.generation.dependencies import ServicesDep
from genai_server.http.middleware.authentication import require_admin
from genai_server.messages.admin import (
    Call,
    CancelRequest,
    EndReasoning,
    GetRuntimeOptions,
    ListRequests,
    R,
    ReasoningEnded,
    RequestList,
    RequestState,
    ResetPrefixCache,
    RuntimeOptionsReply,
    SetRuntimeOption,
)
from genai_server.messages.generation_request import FinishReason
from genai_server.tool_servers.client import ToolServerClient

T = TypeVar("T")
Named = TypeVar("Named", RequestList, RuntimeOptionsReply, ReasoningEnded)

# Seconds to wait for an engine's reply, longer than any forward pass should take.
_REPLY_TIMEOUT = 20.0
# Limits of what an error shows: characters of an unknown name, and requests that share a name.
_MAX_NAME_SHOWN = 100
_MAX_REQUESTS_SHOWN = 20


def admin_router(*codes: int) -> APIRouter:
    """Create a FastAPI router for admin endpoints, which only operators may use: other clients get the error 403.

    `codes` are the HTTP statuses of errors to document in addition to 400, 403, 404 and 503, which all admin endpoints
    have.
    """
    return APIRouter(
        tags=["admin"], dependencies=[Depends(require_admin)], responses=error_responses(400, 403, 404, *codes, 503)
    )


async def ask(
    engines: Sequence[EngineClient], make_call: Callable[[int], Call[R]], *, needs_all: bool = False
) -> list[tuple[EngineClient, R]]:
    """Send an admin call to all engines that are connected, at the same time, and return each engine with its reply.

    `make_call` creates the message for one engine from the number that identifies the call on the connection to this
    engine. An engine that ends before it replies, because it died or its model was unloaded, is left out of the result
    or, with `needs_all`, makes the whole call fail with NoEngineReady. NoEngineReady is also raised if no engine
    replies, or if an engine that runs does not reply in time.
    """
    running = [engine for engine in engines if engine.is_connected]
    results = await asyncio.gather(
        *(asyncio.wait_for(engine.admin.ask(make_call), _REPLY_TIMEOUT) for engine in running), return_exceptions=True
    )
    replies: list[tuple[EngineClient, R]] = []
    ended: list[NoEngineReady] = []
    for engine, result in zip(running, results, strict=True):
        if isinstance(result, NoEngineReady) and not needs_all:
            ended.append(result)
        elif isinstance(result, TimeoutError):
            raise NoEngineReady(
                f"the engine of device {engine.device} has not replied for {_REPLY_TIMEOUT:.0f} s; it carries the call "
                "out after its current step"
            )
        elif isinstance(result, BaseException):
            raise result
        else:
            replies.append((engine, result))
    if not replies:
        raise next(iter(ended), NoEngineReady(f"no engine is running on {', '.join(e.device for e in engines)}"))
    return replies


def by_device(replies: Sequence[tuple[EngineClient, T]], convert: Callable[[T], Any]) -> dict[str, Any]:
    """Build the response body of an admin endpoint from the engines' replies.

    The field `devices` of the body maps the name of each engine's device to the engine's reply, which `convert` turns
    into JSON. If the replies come from engines of several models, `devices` has only the replies for the first model,
    and the additional field `models` maps each model's name to an object with its `devices`. `replies` must not be
    empty.
    """
    models: dict[str, dict[str, Any]] = {}
    for engine, reply in replies:
        models.setdefault(engine.model_name, {})[engine.device] = convert(reply)
    body: dict[str, Any] = {"devices": next(iter(models.values()))}
    if len(models) > 1:
        body["models"] = {name: {"devices": devices} for name, devices in models.items()}
    return body


async def ask_about(
    engines: Sequence[EngineClient],
    name: str,
    make_call: Callable[[int, str, bool], Call[Named]],
    *,
    tenant: str | None = None,
) -> tuple[RequestState, list[tuple[EngineClient, Named]]]:
    """Send a call about one request to the engines. Returns the state of this request, and each engine with its reply.

    `name` is the request's unique id, or else its ordinary id if no other request has this ordinary id. `make_call`
    creates the message from the number of the call, the name, and whether the name is known to be a unique id. With a
    single engine, the call is sent at once: the engine looks the name up itself, and does nothing if several requests
    match. With several engines, all of them are first asked for the unique id. If `tenant` (an API key) is given, only
    requests of this API key are found. Raises RequestNotFound, NoEngineReady, and AmbiguousRequest, whose message lists
    the unique ids.
    """
    is_unique = sum(engine.is_connected for engine in engines) > 1
    if is_unique:
        candidates = await ask(engines, partial(ListRequests, name=name, tenant=tenant))
        name = _only_request(name, candidates).unique_id
    replies = await ask(engines, lambda number: make_call(number, name, is_unique))
    return _only_request(name, replies), replies


def _only_request(name: str, replies: Sequence[tuple[EngineClient, Named]]) -> RequestState:
    """Return the one request in the engines' replies whose unique id is `name`, or, if there is none, whose ordinary id
    is `name`. Raises RequestNotFound if no request matches, and AmbiguousRequest if several requests have this ordinary
    id.
    """
    return _only([(engine.device, state) for engine, reply in replies for state in reply.requests], name)


def _only(present: Sequence[tuple[str, RequestState]], name: str) -> RequestState:
    """Choose a request by its name: return the request whose unique id is `name`, or, if there is none, the only
    request whose ordinary id is `name`.

    `present` are the requests to choose from, each after the name of its device. Raises RequestNotFound if no request
    matches, and AmbiguousRequest if several requests have this ordinary id.
    """
    matches = {state.unique_id: (device, state) for device, state in present if state.unique_id == name}
    matches = matches or {state.unique_id: (device, state) for device, state in present if state.request_id == name}
    if not matches:
        raise RequestNotFound(f"no request {quoted(name[:_MAX_NAME_SHOWN])} is running or waiting", param="request_id")
    if len(matches) > 1:
        descriptions = [f"{id} ({device}, {state.phase}, {state.age:.1f} s)" for id, (device, state) in matches.items()]
        more = f" and {len(descriptions) - _MAX_REQUESTS_SHOWN} more" if len(descriptions) > _MAX_REQUESTS_SHOWN else ""
        raise AmbiguousRequest(
            f"{len(descriptions)} requests have the id {quoted(name)}; choose one by its unique_id, "
            f"one of {', '.join(descriptions[:_MAX_REQUESTS_SHOWN])}{more}",
            param="request_id",
        )
    ((_, state),) = matches.values()
    return state


async def cancel_request(engines: Sequence[EngineClient], tools: ToolServerClient, name: str) -> RequestState:
    """Cancel a request, whichever API process received it, and return its state.

    `name` is the request's unique id, or else its ordinary id if no other request has this ordinary id. An engine has
    the request while it generates; `tools` finds the request while the server runs a tool for it. Raises
    RequestNotFound, AmbiguousRequest if several requests have the id, and NoEngineReady.
    """
    ended = await end_request_with_tools(engines, tools, name, FinishReason.CANCELLED, CancelRequest)
    if ended is None:
        ended, _ = await ask_about(engines, name, CancelRequest)
    return ended


async def end_request_with_tools(
    engines: Sequence[EngineClient],
    tools: ToolServerClient,
    name: str,
    reason: FinishReason,
    make_call: Callable[[int, str, bool], Call[Named]],
) -> RequestState | None:
    """End a request for which the server itself runs tools, no matter whether a tool or an engine works on it now.

    `name` is the request's unique id, or else its ordinary id if no other request has this ordinary id. If a tool runs
    now, the request ends with `reason` as its finish reason. If an engine works on the request, the message that
    `make_call` creates ends it there; `make_call` takes the number of the call, the name, and whether the name is known
    to be a unique id. Returns the state of the request; returns None, and ends nothing, if the server runs no tools for
    this request. Raises AmbiguousRequest if several requests have the id.
    """
    at_tools = await tools.find(name)
    if not at_tools:
        return None
    try:
        replies = await ask(engines, partial(ListRequests, name=name))
    except NoEngineReady:
        replies = []
    present = [(tool_request.device, tool_request.state) for tool_request in at_tools]
    present += [(engine.device, state) for engine, reply in replies for state in reply.requests]
    request: RequestState = _only(present, name)
    if all(tool_request.state.unique_id != request.unique_id for tool_request in at_tools):
        return None
    # An engine that has it counts how it has ended. If none has it, a tool runs, or another round is about to begin.
    with suppress(NoEngineReady):
        await ask(engines, lambda number: make_call(number, request.unique_id, True))
    await tools.find(request.unique_id, end=reason)
    return request


async def end_reasoning(engines: Sequence[EngineClient], name: str, tenant: str | None) -> tuple[RequestState, bool]:
    """End the reasoning of a request, so that its model writes the final answer, whichever API process received the
    request.

    `name` is the request's unique id, or else its ordinary id if no other request has this ordinary id. If `tenant` (an
    API key) is given, only a request with this API key is found. Returns the state of the request, and whether the
    reasoning could be ended: False if the server does not know the format in which the model writes reasoning. Raises
    RequestNotFound, AmbiguousRequest if several requests have the id, and NoEngineReady.
    """
    call = partial(EndReasoning, tenant=tenant)
    ended, replies = await ask_about(engines, name, call, tenant=tenant)
    return ended, any(reply.num_ended for _, reply in replies)


router = admin_router(409)


@router.get("/v1/admin/runtime_options")
async def get_runtime_options(services: ServicesDep) -> dict[str, Any]:
    """Get the current values of onnxruntime-genai's runtime options, `terminate_session` and `enable_profiling`, and
    the state of profiling, for each device.
    """
    return by_device(await ask(services.models.engines(), GetRuntimeOptions), _options)


@router.post("/v1/admin/runtime_options")
async def set_runtime_options(body: RuntimeOptionsRequest, services: ServicesDep) -> dict[str, Any]:
    """Set onnxruntime-genai's runtime options `terminate_session`, `enable_profiling` or both: on all devices, on one
    device, or for one request. Returns the values of the options on each device afterwards. Raises InvalidField for
    options that are missing, contradict each other or are refused by an engine.
    """
    options = body.model_dump(include={"terminate_session", "enable_profiling"}, exclude_none=True)
    if not options:
        raise InvalidField("terminate_session", "or enable_profiling is required")
    engines = services.models.engines(body.model, body.device)
    if body.terminate_session == "0" and body.request_id is not None:
        raise InvalidField(
            "request_id", 'cannot be combined with terminate_session "0": a terminated request cannot be resumed'
        )
    tools = services.tools.client
    # Profiling comes first: a terminated request can no longer be profiled.
    for option, value in sorted(options.items()):
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
    """Empty the prefix cache: forget the cached prompts and answers of requests that have ended. The response has, for
    each device, the number of slots of the KV cache that have been freed (`slots`).
    """
    replies = await ask(services.models.engines(), ResetPrefixCache)
    return by_device(replies, lambda reply: {"slots": reply.slots})


def _option_of_request(number: int, name: str, is_unique: bool, *, option: str, value: str) -> SetRuntimeOption:
    return SetRuntimeOption(number, option, value, name, is_unique)


def _options(reply: RuntimeOptionsReply) -> dict[str, Any]:
    requests = [msgspec.structs.asdict(request) for request in reply.options.requests]
    return msgspec.structs.asdict(reply.options) | {"requests": requests}
