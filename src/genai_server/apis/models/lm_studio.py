"""LM Studio's model lists, https://lmstudio.ai/docs/developer/rest: /api/v0/models and /api/v1/models.

Clients read a model's state and context length there. They generate text through the other APIs.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from genai_server.apis.models.model_files import ModelFiles, read_files
from genai_server.apis.models.routes import model_entry
from genai_server.apis.shared.base import JsonObject
from genai_server.apis.shared.router import error_responses
from genai_server.generation.catalog import names_of
from genai_server.generation.dependencies import Services, TheServices
from genai_server.messages.status_file import ModelState, ModelStatus
from genai_server.pooling_model import Task

router = APIRouter(tags=["models"], responses=error_responses(404))
# The model types of each version of the API. No type exists for reranking, so such models are not listed.
_TYPES_V0 = {Task.GENERATE: "llm", Task.EMBED: "embeddings"}
# The type in the v0 API of a model that also takes images.
_VISION_V0 = "vlm"
_TYPES_V1 = {Task.GENERATE: "llm", Task.EMBED: "embedding"}


@router.get("/api/v0/models")
async def list_models_v0(services: TheServices) -> dict[str, Any]:
    """List models, whether loaded or not, with their aliases and adapters, in the format of LM Studio's v0 API."""
    return {"object": "list", "data": [each.in_v0() for each in await _listed(services)]}


@router.get("/api/v0/models/{model:path}")
async def get_model_v0(model: str, services: TheServices) -> dict[str, Any]:
    """One model or adapter, in the format of LM Studio's v0 API."""
    return (await _Listed.read(services, model, services.models.choose(model).about)).in_v0()


@router.get("/api/v1/models")
async def list_models_v1(services: TheServices) -> dict[str, Any]:
    """List models, whether loaded or not, with their aliases and adapters, in the format of LM Studio's v1 API."""
    return {"models": [each.in_v1() for each in await _listed(services)]}


@dataclass(frozen=True)
class _Listed:
    """A model under one of its names."""

    name: str
    task: Task
    is_loaded: bool
    # Maximum number of tokens of prompt and answer together; None if that is unknown before the model is loaded.
    context_length: int | None
    takes_tools: bool
    takes_images: bool
    files: ModelFiles

    @classmethod
    async def read(cls, services: Services, name: str, about: ModelStatus) -> "_Listed":
        """Read the details of a model, which need not be loaded."""
        entry = model_entry(services, about)
        files = await asyncio.to_thread(read_files, about)
        length = entry.get("max_model_len") or services.settings.within(files.context_length)
        can = entry["capabilities"]
        is_loaded = entry["state"] == ModelState.READY
        return cls(name, about.task, is_loaded, length, "tools" in can, "vision" in can, files)

    def in_v0(self) -> JsonObject:
        """The model in the format of /api/v0/models."""
        loaded = {"loaded_context_length": self.context_length} if self.is_loaded else {}
        return {
            "id": self.name,
            "object": "model",
            "type": _VISION_V0 if self.takes_images else _TYPES_V0.get(self.task, self.task.value),
            "publisher": self._publisher,
            "arch": self.files.family,
            "compatibility_type": "onnx",
            "quantization": "unknown",
            "state": "loaded" if self.is_loaded else "not-loaded",
            "max_context_length": self.context_length,
            **loaded,
            "capabilities": ["tool_use"] if self.takes_tools else [],
        }

    def in_v1(self) -> JsonObject:
        """The model in the format of /api/v1/models, whose `format` has no value for ONNX."""
        instance = {"id": self.name, "config": {"context_length": self.context_length}}
        more: JsonObject = {}
        if self.task is Task.GENERATE:
            more["architecture"] = self.files.family or None
            more["capabilities"] = {"vision": self.takes_images, "trained_for_tool_use": self.takes_tools}
        return {
            "type": _TYPES_V1[self.task],
            "publisher": self._publisher,
            "key": self.name,
            "display_name": self.name,
            "quantization": None,
            "size_bytes": self.files.size,
            "params_string": None,
            "loaded_instances": [instance] if self.is_loaded else [],
            "max_context_length": self.context_length,
            "format": None,
            **more,
        }

    @property
    def _publisher(self) -> str:
        return self.name.partition("/")[0] if "/" in self.name else "genai-server"


async def _listed(services: Services) -> list[_Listed]:
    models = [about for about in services.models.usable() if about.task in _TYPES_V0]
    return [await _Listed.read(services, name, about) for about in models for name in names_of(about)]
