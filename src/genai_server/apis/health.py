"""Health endpoints, which need no API key: /healthz reports the state of models and devices, /livez whether the server
must be restarted, and /readyz (also /health) whether the server accepts work.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from genai_server import __version__
from genai_server.apis.models import model_entry
from genai_server.engine_client.client import EngineClient, describe
from genai_server.generation.catalog import Catalog
from genai_server.generation.dependencies import Services, ServicesDep
from genai_server.http.request_state import request_state
from genai_server.messages.engine_protocol import Load
from genai_server.messages.server_status import EngineState, EngineStatus, ModelStatus

# The values of `status` in /healthz.
OK, DEGRADED, FAILED = "ok", "degraded", "failed"
# A device whose session an operator has terminated, in place of its state.
_TERMINATED = "terminated"
# States of devices that should take work and do not, and of those that do or will.
_BROKEN = {EngineState.RESTARTING, EngineState.FAILED, _TERMINATED}
_WORKING = {EngineState.STARTING, EngineState.READY}

router = APIRouter(tags=["status"])


@router.get("/healthz")
async def healthz(request: Request, services: ServicesDep) -> dict[str, Any]:
    """Report the state of each model and device. The HTTP status is 200 as long as the API process is alive.

    The field `status` is `ok`; `degraded` if devices have died, failed or been terminated by an operator; or `failed`
    if in addition no other device works or loads. `devices` and `model_dir` are those of the first model. Without an
    API key, only `status` and the states of the first model's devices are shown.
    """
    settings, models = services.settings, services.models
    statuses = models.statuses()
    status = _whole_status(models, statuses)
    if request_state(request.scope).access is None:
        engines = models.engine_statuses(statuses[0]) if statuses else []
        return {"status": status, "devices": {engine.device: {"state": engine.state} for engine in engines}}
    entries = {model.name: model_status(services, model) for model in statuses}
    return {
        "status": status,
        "backend": "onnx-genai",
        "device": settings.device,
        "model_dir": statuses[0].path if statuses else None,
        "version": __version__,
        "devices": entries[statuses[0].name]["devices"] if statuses else {},
        "models": entries,
    }


@router.get("/livez")
async def livez(services: ServicesDep) -> JSONResponse:
    """Report whether the server must be restarted. The status is 503 if all devices have failed for good, so that the
    server must be restarted or an operator must load a model; otherwise 200.

    Intended for liveness probes: a server that is loading a model, is stopping or has no model is alive.
    """
    states = [engine.state for model in services.models.statuses() for engine in services.models.engine_statuses(model)]
    if states and all(state == EngineState.FAILED for state in states):
        return JSONResponse({"status": "failed", "reason": "all devices have been given up"}, 503)
    return JSONResponse({"status": "ok"})


# The path in vLLM and llama.cpp, which clients check at startup.
@router.get("/health", include_in_schema=False)
@router.get("/readyz")
async def readyz(request: Request, services: ServicesDep) -> JSONResponse:
    """Report whether the server accepts work. The status is 200 if an engine accepts work or a model can be loaded on
    demand; otherwise 503 with the reason.

    Both responses list the state of each device. Without an API key, the names of models and the reasons of failures,
    which may contain paths, are hidden.
    """
    in_full = request_state(request.scope).access is not None
    models = services.models
    statuses = models.statuses()
    states = {model.name: _states_in_words(models, model, in_full=in_full) for model in statuses}
    body: dict[str, Any] = {"devices": next(iter(states.values()), {})}
    if len(statuses) > 1 and in_full:
        body["models"] = states
    if services.drain.is_draining:
        return JSONResponse({"status": "not ready", "reason": "the server is about to stop", **body}, 503)
    if any(_takes_work(models, model) for model in statuses):
        return JSONResponse({"status": "ready", **body})
    reasons = [
        f"device {device} is {state}"
        if len(statuses) == 1 or not in_full
        else f"device {device} of model {name} is {state}"
        for name, devices in states.items()
        for device, state in devices.items()
    ]
    return JSONResponse({"status": "not ready", "reason": "; ".join(reasons) or "no model is served", **body}, 503)


def _whole_status(models: Catalog, statuses: Iterable[ModelStatus]) -> str:
    """Return the state of the server as one word, by the states of all devices of all models: `ok` if none is broken,
    `degraded` if some are, or `failed` if in addition no other device works or loads.
    """
    states = [state for model in statuses for state in _states(models, model)]
    if not any(state in _BROKEN for state in states):
        return OK
    return DEGRADED if any(state in _WORKING for state in states) else FAILED


def _states(models: Catalog, model: ModelStatus) -> list[str]:
    """Return the state of each device of a model. The state of a device whose session an operator has terminated is
    `terminated`.
    """
    served = models.served(model)
    if served is None:
        return [engine.state for engine in models.engine_statuses(model)]
    engines = served.router.engines.values()
    return [_TERMINATED if engine.load.terminated else engine.status().state for engine in engines]


def model_status(services: Services, model: ModelStatus) -> dict[str, Any]:
    """Return the state of a model and of its devices as the JSON object that /healthz shows."""
    models = services.models
    entry = model_entry(services, model)
    summary: dict[str, Any] = {
        name: entry[name] for name in ("state", "loading_seconds", "error", "shortage") if name in entry
    }
    if (served := models.served(model)) is not None and served.is_readable and served.codec.has_chat_template:
        # What of conversations the prompt has in another form.
        summary["chat_template"] = served.codec.writer.adaptations
    devices = {status.device: _device_status(models, model, status) for status in models.engine_statuses(model)}
    return {**summary, "path": model.path, "aliases": model.aliases, "devices": devices}


def _device_status(models: Catalog, model: ModelStatus, status: EngineStatus) -> dict[str, Any]:
    """Return the state of a model's engine on one device as the JSON object that /healthz shows: process id, restarts,
    numbers of running and waiting requests, limits and so on. `error` is present only after a failure; other fields are
    absent as long as their values are unknown.
    """
    served = models.served(model)
    engine = None if served is None else served.router.engines[status.device]
    load = Load() if engine is None else engine.load
    fields: dict[str, Any] = {
        "state": status.state,
        "pid": status.pid,
        "restarts": status.restarts,
        "model": model.name,
        "running": load.running,
        "waiting": load.waiting,
        "background": {"running": load.low_priority_running, "waiting": load.low_priority_waiting},
        "terminated": load.terminated,
    }
    if engine is not None and engine.is_connected:
        kv_tokens = 0 if engine.figures is None else engine.figures.kv_capacity
        fields["batching"] = {**msgspec.structs.asdict(engine.batching), "kv_tokens": kv_tokens}
    if engine is not None and engine.figures is not None and engine.figures.disk_cache is not None:
        fields["prefix_disk_cache"] = msgspec.structs.asdict(engine.figures.disk_cache)
    if status.max_length:
        fields |= {"max_length": status.max_length, "limited_by": status.limited_by}
    if status.cores is not None:
        fields["cores"] = msgspec.structs.asdict(status.cores)
    if status.error is not None:
        fields["error"] = status.error
    return fields


def _states_in_words(models: Catalog, model: ModelStatus, *, in_full: bool) -> dict[str, str]:
    """Return the state of a model on each of its devices, in words, keyed by the device's name. With `in_full`, the
    causes of failures are included.
    """
    served = models.served(model)
    if served is None:
        return dict.fromkeys(model.devices, model.state)
    return {engine.device: _in_words(engine, in_full=in_full) for engine in served.router.engines.values()}


def _in_words(engine: EngineClient, *, in_full: bool) -> str:
    if engine.load.terminated:
        return _TERMINATED
    status = engine.status()
    return describe(status) if in_full else status.state


def _takes_work(models: Catalog, model: ModelStatus) -> bool:
    served = models.served(model)
    if served is None:
        return model.on_demand
    return served.router.is_ready and served.is_readable and not model.leaving
