"""Admin endpoints that list the models in GENAI_MODELS_DIR, and the models in a repository of the Hugging Face Hub."""

import asyncio
from pathlib import Path
from typing import Any

from genai_server.apis.admin.engine_calls import admin_router
from genai_server.generation.catalog import Catalog, plain_name
from genai_server.generation.dependencies import ServicesDep
from genai_server.generation.pulling import StoredModel

router = admin_router(500)


@router.get("/v1/admin/models/stored")
async def list_stored_models(services: ServicesDep) -> dict[str, Any]:
    """List the model directories in GENAI_MODELS_DIR, whether they are served or not. `size` is in bytes.

    `source` is where a directory was downloaded from, and `served` the name of the model that is served from it; both
    may be null. `memory` is the size in bytes of the memory into which models are loaded; null for a device with memory
    of its own.
    """
    found = await asyncio.to_thread(services.store.stored)
    directory = str(services.store.directory)
    memory = services.store.memory
    return {
        "object": "list",
        "directory": directory,
        "memory": memory,
        "data": [_entry(each, services.models) for each in found],
    }


@router.get("/v1/admin/models/variants")
async def list_variants(repository: str, services: ServicesDep) -> dict[str, Any]:
    """List the models in a repository of the Hugging Face Hub, such as `OWNER/NAME`. `size` is in bytes.

    `name` is the model's name for `/api/pull`. `for_device` says whether the model is the best one for the server's
    device, judged by the name of its folder; it is null if that names no device. `memory` is the number of bytes that
    the loaded weights take, without the KV cache. `fits` says whether the server has that much memory; it is null for a
    device with memory of its own.
    """
    name = plain_name(repository)
    found = await asyncio.to_thread(services.store.variants, name)
    memory = services.store.memory
    variants = [
        {
            "name": f"{name}:{each.folder}" if each.folder else name,
            "folder": each.folder,
            "size": each.size,
            "for_device": each.for_device,
            "memory": each.memory,
            "fits": None if memory is None else each.memory <= memory,
        }
        for each in found
    ]
    return {"object": "list", "repository": name, "data": variants}


def _entry(stored: StoredModel, models: Catalog) -> dict[str, Any]:
    served = next((status.name for status in models.statuses() if Path(status.path).absolute() == stored.path), None)
    return {
        "id": stored.path.name,
        "object": "model",
        "path": str(stored.path),
        "size": stored.size,
        "source": stored.source or None,
        "served": served,
    }
