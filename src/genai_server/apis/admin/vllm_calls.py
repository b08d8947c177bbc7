"""Endpoints of vLLM's API that operators' tools and routers call. They load and unload LoRA adapters with vLLM's field
names, report the server's load, and list the addresses at which engines publish their KV events, by which a router
knows what is in their prefix caches.

The endpoints follow vLLM 0.33, `entrypoints/serve`: `lora`, `instrumentator` and `kv_events`.
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from pydantic import Field

from genai_server.apis.admin.engines import admin_router
from genai_server.apis.admin.models import load_adapter, unload_adapter
from genai_server.apis.admin.schemas import AdapterName, LoadAdapterRequest, ServedName, UnloadAdapterRequest
from genai_server.apis.shared.router import error_responses
from genai_server.generation.dependencies import ServicesDep
from genai_server.generation.parameters.base import StrictModel
from genai_server.http.error_wording import FieldNames
from genai_server.http.request_state import request_state
from genai_server.messages.prefix_cache import event_target

router = APIRouter(tags=["status"], responses=error_responses())
adapter_router = admin_router()
# vLLM's names of the fields of the admin calls.
_NAMES = FieldNames({"name": "lora_name", "path": "lora_path", "model": "base_model_name"})


class LoadLoraRequest(StrictModel):
    """Body of POST /v1/load_lora_adapter, in vLLM's format: the LoRA adapter's name, the path of its file on the
    server, and the model that it belongs to (by default the first one). With `load_inplace`, a loaded adapter of this
    name is replaced.
    """

    lora_name: AdapterName
    lora_path: str = Field(min_length=1, description="Path of the adapter file on the server.")
    base_model_name: ServedName | None = Field(None, description="Model of the adapter; by default the first one.")
    load_inplace: bool = Field(False, description="Whether to replace a loaded adapter of this name.")


class UnloadLoraRequest(StrictModel):
    """Body of POST /v1/unload_lora_adapter, in vLLM's format: the LoRA adapter's name, and the model that it belongs to
    (by default the first one). vLLM's field `lora_int_id` is accepted and ignored.
    """

    lora_name: AdapterName
    lora_int_id: int | None = None
    base_model_name: ServedName | None = Field(None, description="Model of the adapter; by default the first one.")


@adapter_router.post("/v1/load_lora_adapter", response_class=PlainTextResponse)
async def load_lora_adapter(body: LoadLoraRequest, services: ServicesDep, request: Request) -> str:
    """Load a LoRA adapter. Requests may then give `lora_name` as the name of their model, if no other model has an
    adapter with this name. Returns vLLM's message of success.
    """
    with request_state(request.scope).leniency.with_names(_NAMES):
        status = services.models.find(body.base_model_name)
        if body.load_inplace and body.lora_name in (adapter.name for adapter in status.adapters):
            await unload_adapter(UnloadAdapterRequest(model=status.name, name=body.lora_name), services)
        await load_adapter(LoadAdapterRequest(model=status.name, name=body.lora_name, path=body.lora_path), services)
    return f"Success: LoRA adapter '{body.lora_name}' added successfully."


@adapter_router.post("/v1/unload_lora_adapter", response_class=PlainTextResponse)
async def unload_lora_adapter(body: UnloadLoraRequest, services: ServicesDep, request: Request) -> str:
    """Unload a LoRA adapter, so that new requests cannot use it. Requests that already use it continue. Returns vLLM's
    message of success.
    """
    with request_state(request.scope).leniency.with_names(_NAMES):
        await unload_adapter(UnloadAdapterRequest(model=body.base_model_name, name=body.lora_name), services)
    return f"Success: LoRA adapter '{body.lora_name}' removed successfully."


@router.get("/load")
async def load(services: ServicesDep) -> dict[str, int]:
    """Get the server's load, as vLLM's endpoint /load reports it: `server_load` is the number of requests that run or
    wait in all engines, without requests of low priority.
    """
    return {"server_load": sum(engine.work for engine in services.models.engines() if engine.is_connected)}


@router.get("/kv_event_sources")
async def kv_event_sources(services: ServicesDep, request: Request) -> list[dict[str, Any]]:
    """List the addresses at which engines publish their KV events, which tell a router what enters and leaves the
    prefix caches. The list is empty unless GENAI_KV_EVENTS is set to an address with `*`.

    The `*` in the address is replaced by the host that the client's request names.
    """
    settings = services.settings
    sources = []
    for status in services.models.statuses():
        for device in status.devices:
            target = event_target(
                settings.kv_events, settings.kv_events_topic, status, device, num_devices=len(settings.devices)
            )
            if target is not None and "*" in target.address:
                endpoint = target.address.replace("*", request.url.hostname or "127.0.0.1")
                source = {"data_parallel_rank": target.rank, "endpoint": endpoint, "topic": target.topic}
                sources.append({**source, "replay_endpoint": None})
    return sources
