"""Admin endpoints: the models in GENAI_MODELS_DIR, and those of a hub's repository."""

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
    """The model directories in GENAI_MODELS_DIR, served or not. `size` is in bytes.

    `source` is where a directory was fetched from, `served` the name of the model that is served from it; both may be
    null. `memory` is the size in bytes of the memory in which models are loaded; null for a device with its own memory.
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
    """The models in a repository of the hub, such as `OWNER/NAME`. `size` is in bytes.

    `name` is what `/api/pull` takes. `for_device` says whether it is the best variant for the server's device, by the
    name of its folder; it is null where that names no device. `memory` is what its weights take once they are loaded,
    beside its context, and `fits` whether the server has as much; it is null for a device with its own memory.
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
    served = next((about.name for about in models.statuses() if Path(about.path).absolute() == stored.path), None)
    return {
        "id": stored.path.name,
        "object": "model",
        "path": str(stored.path),
        "size": stored.size,
        "source": stored.source or None,
        "served": served,
    }
