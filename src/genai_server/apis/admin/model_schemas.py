"""Bodies of the endpoints that load, unload and name models."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from genai_server.apis.shared.base import Wire
from genai_server.config import ADAPTER_NAME, MODEL_NAME, device_list

ModelName = Annotated[str, Field(pattern=f"^{MODEL_NAME}$")]
# The name of a served model, in any form that requests may use.
ServedName = Annotated[str, Field(min_length=1, max_length=256)]
AdapterName = Annotated[str, Field(pattern=f"^{ADAPTER_NAME}$")]


def _devices(value: str) -> str:
    return ",".join(device_list(value))


class LoadModelRequest(Wire):
    """Body of POST /v1/admin/models/load."""

    name: ModelName
    path: str = Field(min_length=1, description="Path of the model directory on the server.")
    device: Annotated[str, AfterValidator(_devices)] | None = Field(
        None, description="Devices, in the format of GENAI_DEVICE, which is the default."
    )
    chat_template: str | None = Field(
        None,
        min_length=1,
        description="Chat template to use instead of the model's own: a file or a name, as in GENAI_CHAT_TEMPLATE.",
    )
    wait: bool | None = Field(
        None,
        description="By default, respond when the model has loaded or failed to load; false: respond at once.",
    )


class UnloadModelRequest(Wire):
    """Body of POST /v1/admin/models/unload."""

    name: ServedName
    timeout: float | None = Field(
        None, ge=0, le=86400, description="Seconds that running answers may continue; by default GENAI_DRAIN_TIMEOUT."
    )
    wait: bool | None = Field(
        None, description="By default, respond when the model's memory is free; false: respond at once."
    )


class AliasRequest(Wire):
    """Body of POST /v1/admin/models/alias: the model that `alias` refers to; null removes the alias."""

    alias: ModelName
    name: ServedName | None


class LoadAdapterRequest(Wire):
    """Body of POST /v1/admin/adapters/load."""

    model: ServedName | None = Field(None, description="Model that the adapter belongs to; by default the first one.")
    name: AdapterName
    path: str = Field(min_length=1, description="Path of the adapter file on the server.")


class UnloadAdapterRequest(Wire):
    """Body of POST /v1/admin/adapters/unload."""

    model: ServedName | None = Field(None, description="Model that the adapter belongs to; by default the first one.")
    name: AdapterName


class ModelEntry(BaseModel):
    """A served model, one of its aliases, or an adapter. `root` is the model's own name; an adapter's `parent` is the
    name of its model, whose state it shares.

    `loading_seconds` is how long the model has been loading, `error` why it failed to load. `chat` is false without a
    chat template: such a model accepts raw prompts only. `max_model_len` and `context_length` limit the tokens of
    prompt and answer together. `capabilities` uses llama.cpp's and Ollama's terms: `completion`, `insert`, `tools`,
    `thinking`, or else `embedding` or `rerank`. `dimensions` is the length of an embedding. Fields are omitted while
    their values are unknown.
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
