"""Bodies of the endpoints that load, unload and name models."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from genai_server.config import ADAPTER_NAME, MODEL_NAME, device_list
from genai_server.openai_api.schemas.base import Wire

ModelName = Annotated[str, Field(pattern=f"^{MODEL_NAME}$")]
# Of a model that is served, in any form in which requests may write it.
ServedName = Annotated[str, Field(min_length=1, max_length=256)]
AdapterName = Annotated[str, Field(pattern=f"^{ADAPTER_NAME}$")]


def _devices(value: str) -> str:
    return ",".join(device_list(value))


class LoadModelRequest(Wire):
    """Body of POST /v1/admin/models/load."""

    name: ModelName
    path: str = Field(min_length=1, description="The model's directory, on the server's machine.")
    device: Annotated[str, AfterValidator(_devices)] | None = Field(None, description="As GENAI_DEVICE, its default.")
    chat_template: str | None = Field(
        None, min_length=1, description="In place of the model's own, as GENAI_CHAT_TEMPLATE: a file or a name."
    )
    wait: bool | None = Field(None, description="false answers at once; else once it is loaded, or has failed to.")


class UnloadModelRequest(Wire):
    """Body of POST /v1/admin/models/unload."""

    name: ServedName
    timeout: float | None = Field(
        None, ge=0, le=86400, description="Seconds that running answers may go on; by default GENAI_DRAIN_TIMEOUT."
    )
    wait: bool | None = Field(None, description="false answers at once; else once its memory is free.")


class AliasRequest(Wire):
    """Body of POST /v1/admin/models/alias: the model by this name, or none any more."""

    alias: ModelName
    name: ServedName | None


class LoadAdapterRequest(Wire):
    """Body of POST /v1/admin/adapters/load."""

    model: ServedName | None = Field(None, description="The model that it is for; the first if left out.")
    name: AdapterName
    path: str = Field(min_length=1, description="The adapter's file, on the server's machine.")


class UnloadAdapterRequest(Wire):
    """Body of POST /v1/admin/adapters/unload."""

    model: ServedName | None = Field(None, description="The model that it is for; the first if left out.")
    name: AdapterName


class ModelEntry(BaseModel):
    """A model that is served, or one of its aliases: `root` is the model's own name. Adapters have the name of their
    model as `parent`, and are in its state.

    `loading_seconds` says for how long it has been loading, `error` why it cannot be loaded. `chat` is false for one
    without a chat template, which takes raw prompts only. `max_model_len` and `context_length` are the most tokens of a
    request's prompt and answer together. `capabilities` are llama.cpp's and Ollama's words: `completion`,
    `insert`, `tools`, `thinking`, or else `embedding` or `rerank`. `dimensions` are the numbers of an embedding. These
    are left out as long as they are not known.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None = None
    state: Literal["loading", "ready", "unloading", "unloaded", "failed"]
    chat: bool | None = None
    capabilities: list[str] | None = None
    dimensions: int | None = None
    max_model_len: int | None = None
    context_length: int | None = None
    loading_seconds: float | None = None
    error: str | None = None
