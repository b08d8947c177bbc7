"""What the server says of itself: what it is, whether its API process lives and whether it takes work."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from genai_server import __version__
from genai_server.api.services import Services, services
from genai_server.engines.client import EngineClient
from genai_server.engines.router import describe

router = APIRouter(tags=["status"])


@router.get("/")
async def about() -> dict[str, str]:
    """What this is and where to go on; nothing that not everybody may know."""
    return {
        "name": "genai-server",
        "version": __version__,
        "docs": "/docs",
        "openapi": "/openapi.json",
        "health": "/healthz",
        "ready": "/readyz",
        "models": "/v1/models",
    }


@router.get("/healthz")
async def healthz(request: Request, services: Annotated[Services, Depends(services)]) -> dict[str, Any]:
    """200 for as long as the API process lives, with the state of each device; strangers see no more of it."""
    settings = services.settings
    if request.state.access is None:
        states = {device: {"state": services.router.engines[device].status().state} for device in settings.devices}
        return {"status": "ok", "devices": states}
    return {
        "status": "ok",
        "backend": "onnx-genai",
        "device": settings.device,
        "model_dir": settings.model_dir,
        "version": __version__,
        "devices": {device: device_status(services, device) for device in settings.devices},
    }


@router.get("/readyz")
async def readyz(request: Request, services: Annotated[Services, Depends(services)]) -> JSONResponse:
    """200 when at least one engine can take work, else 503 with the reason; what is wrong with a device in any case,
    but not to strangers: a library's reason names folders.
    """
    in_full = request.state.access is not None
    states = {device: state_in_words(engine, in_full=in_full) for device, engine in services.router.engines.items()}
    if services.drain.is_draining:
        return JSONResponse({"status": "not ready", "reason": "the server is about to stop", "devices": states}, 503)
    if services.router.is_ready:
        return JSONResponse({"status": "ready", "devices": states})
    reason = "; ".join(f"device {device} is {state}" for device, state in states.items())
    return JSONResponse({"status": "not ready", "reason": reason, "devices": states}, 503)


def state_in_words(engine: EngineClient, *, in_full: bool) -> str:
    """A device's state as one line; in full with what went wrong."""
    if engine.load.terminated:
        return "terminated"
    status = engine.status()
    return describe(status) if in_full else status.state


def device_status(services: Services, device: str) -> dict[str, Any]:
    """One device's state; `error` only where something went wrong."""
    engine = services.router.engines[device]
    status = engine.status()
    found: dict[str, Any] = {
        "state": status.state,
        "pid": status.pid,
        "restarts": status.restarts,
        "model": services.settings.model_name,
        "running": engine.load.running,
        "waiting": engine.load.waiting,
        "terminated": engine.load.terminated,
    }
    if engine.is_connected:
        found["batching"] = msgspec.structs.asdict(engine.batching)
    if status.error is not None:
        found["error"] = status.error
    return found
