"""The settings: names, defaults, limits and meaning. `Settings` has those of models and engines; the others are in its
base classes. `SETTING_GROUPS` has the groups in which documentation and `--help` show the settings, the most important
ones first.

A field's docstring is its description in `--help` and docs/settings.md. Its name becomes its environment variable and
its command-line option: `max_length` is GENAI_MAX_LENGTH and `--max-length`.
"""

import os
import re
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import Field, ValidationInfo, field_validator

from genai_server.config.media_settings import MediaSettings, checked_hosts, host_set
from genai_server.config.server_settings import ServerSettings
from genai_server.config.setting_form import (
    AUTO,
    NotNegative,
    Positive,
    adapter_entries,
    check_one_per_model,
    entries_of_models,
    listed,
    pairs,
    require_distinct,
)
from genai_server.errors import quoted
from genai_server.options.providers import PROVIDERS, suggested_devices

DEVICE_KINDS = (*PROVIDERS, "scripted")
_DEVICE = re.compile(rf"({'|'.join(DEVICE_KINDS)})(:[0-9]{{1,3}})?")
_MAX_NAME = 128
# Valid names of models.
MODEL_NAME = rf"[A-Za-z0-9][A-Za-z0-9._/-]{{0,{_MAX_NAME - 1}}}"
# Characters of a directory's name that a model's name must not have.
_INVALID_NAME_CHARACTERS = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]")
# Valid names of adapters, which follow the model's name and a colon in requests.
ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# Valid aliases: also names that other servers use, such as qwen3:4b, and `*` for all other names.
_ALIAS = r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}|\*"

_BUDGET = re.compile(r"[0-9]{1,9}")


class Settings(ServerSettings, MediaSettings):
    """All settings of the server. `load_settings` creates the object from the command line, the environment and files;
    it cannot be changed. Times are in seconds, sizes in bytes, lengths in tokens.
    """

    model_dir: str = "./models/demo"
    """Directory of the onnxruntime-genai model. If the default directory does not exist, an installed server uses its
    own demo model.
    """

    model_name: str = Field("", pattern=f"^({MODEL_NAME})?$", validate_default=True)
    """The model's id in requests and answers; empty uses the name of its directory."""

    models: str = ""
    """Several models instead of one: `small=./models/demo,big=/srv/big`. The field `model` of a request selects one;
    without it, the first is used.
    """

    adapters: str = ""
    """LoRA adapters, which requests choose by `MODEL:NAME`: `law=./law.onnx_adapter` for the first model,
    `big:law=/srv/law.onnx_adapter` for another.
    """

    model_aliases: str = ""
    """Additional model names, such as `gpt-4o=big,gpt-4o-mini=small`; `*=big` maps all other names to a model."""

    max_models: NotNegative | Literal["auto"] = AUTO
    """Maximum number of models loaded at once. `auto` loads as many as fit into memory; 0 sets no limit. A request for
    another model replaces the model that has been idle for longest.
    """

    idle_unload: int = Field(0, ge=0, le=31_536_000)
    """Seconds without a request after which a model is unloaded, until the next request for it; 0 disables this.
    `keep_alive` in Ollama's API overrides it.
    """

    device: str = "cpu"
    """`cpu`, `cuda`, `directml` or another execution provider, or a list such as `cpu,cuda:1`; each device gets an
    engine process. `cpu:NODE` uses the cores of a NUMA node.
    """

    max_length: Positive | Literal["auto"] = AUTO
    """Maximum number of tokens of prompt and answer together. `auto` is the model's context, or as much of it as the KV
    cache holds (`GENAI_KV_CACHE_BYTES`).
    """

    max_batch_size: int = Field(16, ge=1, le=1024)
    """Maximum number of requests that a device runs at once; others wait. On Linux CPUs and on CUDA, the memory may
    hold fewer (`GENAI_KV_CACHE_BYTES`).
    """

    scheduler: Literal["auto", "batched", "generator"] = "auto"
    """`batched` (the server's continuous batch on ONNX Runtime), `generator` (onnxruntime-genai's `og.Generator`, one
    request after another), or `auto`: `batched` on CPUs and CUDA if the model allows it, otherwise `generator`.
    """

    kv_cache_bytes: int = Field(0, ge=0)
    """Maximum bytes of each engine's KV cache. 0 uses half of the free memory for the KV caches of all models, and on
    CUDA the memory that weights and passes leave free, or 1 GiB if that is unknown.
    """

    kv_cache_type: Literal["auto", "fp32", "fp16", "int8"] = "fp32"
    """Data type of the KV cache on CPUs: `fp32`, `fp16` (half the memory, slower after short prompts), `int8` (little
    more than a quarter of the memory, less exact), or `auto`: `fp16` if the memory cannot hold the model's context, or
    `GENAI_MAX_BATCH_SIZE` requests of `GENAI_MAX_LENGTH`, in 32 bits.
    """

    attention_type: Literal["fp32", "bf16"] = "fp32"
    """Data type in which attention is computed on CPUs: `fp32`, or `bf16` on processors with AVX-512 BF16, which is
    less exact, but faster for long prompts if the processor has AMX.
    """

    exact: bool = False
    """Make all answers bitwise independent of other requests. Models whose batch cannot ensure this run requests one by
    one.
    """

    tool_parser: str = "auto"
    """Format of tool calls, such as `hermes`; `auto` detects it from the chat template, `none` disables tools."""

    chat_template: str = ""
    """Chat template that replaces the model's own: a file, or `alpaca`, `chatml`, `gemma`, `llama2`, `llama3`,
    `mistral`, `phi-2`, `phi-3`, `vicuna` or `zephyr`; `big=chatml` sets the template of a model other than the first.
    """

    max_queue: int = Field(256, ge=0)
    """Maximum number of requests that wait for a device. Further requests get a 503, unless their key has less than an
    equal share of the queue. Requests of batches count separately.
    """

    max_queue_tokens: int = Field(262_144, ge=0)
    """Maximum number of prompt tokens of all requests that wait for a device, except those of batches; keys have equal
    shares as in the queue. 0 sets no limit.
    """

    request_timeout: int = Field(600, ge=1, le=86400)
    """Seconds after which an answer ends with the text so far; also the maximum timeout that a request may set."""

    grammar_timeout: int = Field(5, ge=1, le=600)
    """Seconds for checking one grammar, tool or JSON schema; if a check takes longer, the request gets a 400."""

    max_waiting_grammar_bytes: Positive = 8 * 1024 * 1024
    """Maximum size of the grammars that wait to be checked, for each API key, or for all clients without a key
    together; requests beyond it get a 503.
    """

    preparation_processes: Positive = Field(2, le=64)
    """Maximum number of images, recordings and grammars that are prepared at a time, for all API processes together. An
    API key without a running preparation may start one more. Long recordings are decoded in addition to these.
    """

    prefill_chunk: int = Field(0, ge=0)
    """Maximum number of prompt tokens in a step that also decodes; 0 means 128 on CPUs, 2048 on other devices."""

    encoder_weights: Literal["auto", "own"] = "auto"
    """Weights of the graphs for images and audio on CPUs: `own` are the model's; `auto` uses 8 bits instead of 16 or 32
    if the processor multiplies these faster.
    """

    itl_target: float = Field(0.0, ge=0, le=3600)
    """Maximum seconds until a running answer's next token while prompts are read. 0 allows four times the usual time,
    and more if many prompts wait.
    """

    speculation: Literal["auto", "off"] = "auto"
    """Speculative decoding in the batch: `auto` drafts the next tokens of answers when that is faster; `off` never
    drafts.
    """

    draft_memory_bytes: int = Field(32 * 1024 * 1024, ge=0)
    """Maximum bytes of earlier answers that each engine keeps for speculative decoding, separated by API key; a token
    takes 12 bytes. The oldest answers of the least recently used key are dropped first; 0 keeps none.
    """

    draft_model: str = ""
    """Directory of a much smaller model with the same tokenizer, which drafts the first model's next tokens when that
    is faster; `big=./small` sets the draft model of another model.
    """

    threads: int = Field(0, ge=0, le=1024)
    """Threads of an operator on the CPU; 0 uses as many as the engine has physical cores."""

    cache_dir: str = ""
    """Folder for packed weights, which engines share, with a copy for each NUMA node of `cpu:NODE`; empty uses the
    user's cache, `none` disables it.
    """

    prefix_cache_bytes: str = Field("0", pattern="^(auto|[0-9]{1,18})$")
    """Maximum bytes of the prefix cache on disk, from which engines load the KV cache of prompts, for example after a
    restart. `auto` is a tenth of the disk's free space; 0 keeps none.
    """

    prefix_cache_dir: str = ""
    """Folder for the prefix cache on disk, which all engines of the host share; empty uses `prefixes` in
    `GENAI_CACHE_DIR`.
    """

    prefix_cache_type: Literal["same", "fp16"] = "same"
    """Data type of the prefix cache on disk: the `same` as in memory, or `fp16`, which halves the files of a cache in
    `fp32` but rounds, so that `exact` is refused.
    """

    models_dir: str = ""
    """Folder into which `pull` and `export` put models; empty uses the user's data folder."""

    strict: bool = False
    """Also refuse fields without effect, and schemas that can only be followed in part; otherwise the header
    `x-genai-ignored` names them.
    """

    default_max_tokens: int = Field(0, ge=0)
    """Maximum number of tokens of an answer whose request has no `max_tokens`; 0 allows as many as fit into the
    context, which a small model that repeats itself would fill.
    """

    thinking_budget: str = ""
    """Maximum number of reasoning tokens of an answer whose request has no budget: `4096` for all models, or
    `4096,big=8192` with another budget for the model `big`. 0 turns reasoning off; empty sets no limit.
    `thinking_budget=N` on an API key's line takes precedence.
    """

    cap_max_tokens: bool = True
    """Reduce a `max_tokens` of /v1/messages, or a `num_predict` of Ollama's API, that exceeds the context to what fits.
    Otherwise, and with GENAI_STRICT, such a request gets a 400.
    """

    max_tool_rounds: int = Field(16, ge=1, le=10_000)
    """Maximum number of times that tools of the operator's servers (`[mcp.NAME]` in the configuration file) are run for
    one answer; then the model has to answer without them.
    """

    mcp_hosts: str = ""
    """Comma-separated hosts with public addresses whose tool servers requests may name by URL, such as
    `mcp.example.com,tools.example:8443`. With an empty value, requests can name only tool servers of the configuration
    file.
    """

    allow_special_tokens: bool = False
    """Let messages and tools contain the tokens that structure a prompt, such as the end of a turn."""

    step_timeout: int = Field(60, ge=0, le=86400)
    """Seconds, plus 0.1 per token of the step, after which an engine is considered hung and is restarted; 0 sets no
    limit.
    """

    load_timeout: int = Field(1800, ge=0, le=86400)
    """Maximum seconds for an engine to load its model; 0 sets no limit."""

    max_restarts: int = Field(8, ge=0)
    """Number of consecutive restarts of an engine, none of which served for a minute, after which its device is given
    up.
    """

    @property
    def allowed_mcp_hosts(self) -> frozenset[str]:
        """The hosts of tool servers that requests may name by URL, with their ports where given."""
        return host_set(self.mcp_hosts)

    @field_validator("device")
    @classmethod
    def _known_devices(cls, value: str) -> str:
        return ",".join(device_list(value))

    @field_validator("model_name")
    @classmethod
    def _own_name(cls, value: str, info: ValidationInfo) -> str:
        return value or name_of_directory(info.data.get("model_dir", ""))

    @field_validator("models")
    @classmethod
    def _are_models(cls, value: str) -> str:
        entries = pairs(value)
        for name, path in entries:
            if not re.fullmatch(MODEL_NAME, name) or not path:
                raise ValueError(f"{quoted(name)} is not a model with its directory, such as small=./models/demo")
        require_distinct([name for name, _ in entries], "a model is named twice")
        return value

    @field_validator("adapters")
    @classmethod
    def _are_adapters(cls, value: str, info: ValidationInfo) -> str:
        models = _named(info)
        for id, path in pairs(value):
            model, _, name = id.rpartition(":")
            if not re.fullmatch(ADAPTER_NAME, name) or not path:
                raise ValueError(f"{quoted(id)} is not an adapter with its file, such as law=./law.onnx_adapter")
            if model and model not in models:
                raise ValueError(f"{quoted(id)} belongs to a model that is not served")
        require_distinct(
            [(model, name) for model, name, _ in adapter_entries(value, models[0])], "an adapter is named twice"
        )
        return value

    @field_validator("model_aliases")
    @classmethod
    def _are_aliases(cls, value: str, info: ValidationInfo) -> str:
        models = _named(info)
        entries = pairs(value)
        for alias, model in entries:
            if not re.fullmatch(_ALIAS, alias) or not model:
                raise ValueError(f"{quoted(alias)} is not an alias with its model, such as gpt-4o=big")
            if model not in models:
                served = ", ".join(models)
                raise ValueError(
                    f"{quoted(alias)} is an alias of {quoted(model)}, a model that is not served; served: {served}"
                )
            if alias in models:
                raise ValueError(f"{quoted(alias)} is the name of a model")
        require_distinct([alias for alias, _ in entries], "an alias is named twice")
        return value

    @field_validator("mcp_hosts")
    @classmethod
    def _are_tool_hosts(cls, value: str) -> str:
        return checked_hosts(value)

    @field_validator("chat_template")
    @classmethod
    def _are_chat_templates(cls, value: str, info: ValidationInfo) -> str:
        example = "a chat template, such as chatml, ./chat.jinja or big=chatml"
        return check_one_per_model(value, _named(info), example, "a model has two chat templates")

    @field_validator("draft_model")
    @classmethod
    def _are_draft_models(cls, value: str, info: ValidationInfo) -> str:
        example = "the directory of a draft model, such as ./small or big=./small"
        return check_one_per_model(value, _named(info), example, "a model has two draft models")

    @field_validator("thinking_budget")
    @classmethod
    def _are_budgets(cls, value: str, info: ValidationInfo) -> str:
        entries = entries_of_models(value, "")
        for model, budget in entries:
            if model and model not in _named(info):
                raise ValueError(f"{quoted(model)} is a model that is not served")
            if not _BUDGET.fullmatch(budget):
                raise ValueError(f"{quoted(budget)} is not a number of tokens, as in 4096 or big=4096")
        require_distinct([model for model, _ in entries], "a model has two budgets")
        return value

    @property
    def devices(self) -> list[str]:
        """The configured devices, in the configured order."""
        return self.device.split(",")

    def within(self, context_length: int | None) -> int | None:
        """Return the maximum number of tokens in a sequence of a model: the setting `max_length` or the model's own
        `context_length`, whichever is smaller. None for `context_length` means that it is unknown; returns None if
        neither limits it.
        """
        if isinstance(self.max_length, str):
            return context_length
        return min(self.max_length, context_length or self.max_length)

    @property
    def served(self) -> dict[str, str]:
        """The models that the server is configured to serve: the directory of each by the model's name. Requests that
        name no model use the first one.
        """
        return dict(pairs(self.models)) or {self.model_name: self.model_dir}

    @property
    def aliases(self) -> dict[str, str]:
        """The configured additional names of models: for each alias the name of the model that it stands for."""
        return dict(pairs(self.model_aliases))

    def chat_template_of(self, model: str) -> str:
        """Return the chat template that is configured for a model in place of its own: a file, or the name of a known
        template; "" if none is configured.
        """
        return dict(entries_of_models(self.chat_template, next(iter(self.served)))).get(model, "")

    def thinking_budget_of(self, model: str) -> int | None:
        """Return the configured maximum number of reasoning tokens in an answer of a model; None without a limit."""
        budgets = dict(entries_of_models(self.thinking_budget, ""))
        budget = budgets.get(model, budgets.get(""))
        return None if budget is None else int(budget)

    def draft_model_of(self, model: str) -> str:
        """Return the directory of the draft model with which a model uses speculative decoding; "" if none is
        configured or if speculative decoding is off.
        """
        if self.speculation == "off":
            return ""
        return dict(entries_of_models(self.draft_model, next(iter(self.served)))).get(model, "")

    def adapter_files(self, model: str) -> dict[str, str]:
        """Return the configured LoRA adapters of a model: each adapter's file by its name."""
        first = next(iter(self.served))
        return {name: path for of, name, path in adapter_entries(self.adapters, first) if of == model}

    @property
    def store_file(self) -> Path | None:
        """The configured SQLite file in which responses, conversations, and the state of files and batches are stored;
        None if they are in a temporary file that is removed when the server stops.
        """
        if self.files_dir:
            return Path(self.files_dir) / "store.sqlite"
        return Path(self.response_store_file) if self.response_store_file else None

    @property
    def cache_path(self) -> Path | None:
        """The folder in which the server keeps packed weights (rearranged for the processor) between starts; None if
        they are not to be kept.
        """
        if self.cache_dir == "none":
            return None
        return Path(self.cache_dir) if self.cache_dir else platformdirs.user_cache_path("genai-server")

    @property
    def prefix_cache_path(self) -> Path:
        """The folder in which the prefix cache (keys and values of the beginnings of prompts) is kept on disk."""
        if self.prefix_cache_dir:
            return Path(self.prefix_cache_dir).expanduser()
        return (self.cache_path or platformdirs.user_cache_path("genai-server")) / "prefixes"

    @property
    def models_path(self) -> Path:
        """The folder into which models are downloaded or built."""
        if self.models_dir:
            return Path(self.models_dir).expanduser()
        return platformdirs.user_data_path("genai-server") / "models"


for _field in Settings.model_fields.values():
    _field.description = " ".join((_field.description or "").split())


def _named(info: ValidationInfo) -> list[str]:
    """Return the names of the configured models, for a pydantic validator that checks names of models in another
    setting. `info` has the values of the settings that were validated before, which include the models.
    """
    return [name for name, _ in pairs(info.data.get("models", ""))] or [str(info.data.get("model_name"))]


def name_of_directory(path: str) -> str:
    """Return the name that a model has by default: the name of its directory, without characters that model names must
    not have.
    """
    return _INVALID_NAME_CHARACTERS.sub("", os.path.basename(os.path.abspath(path)))[:_MAX_NAME] or "model"


def device_list(value: str) -> list[str]:
    """Parse a comma-separated list of devices such as `cpu,cuda:1`, and return the devices in the order of the list.

    Raises ValueError for an unknown device and for one that is listed twice.
    """
    names = listed(value)
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise ValueError(f"unknown device {quoted(name)}{suggested_devices(name)}")
    require_distinct(names, "a device is named twice")
    return names


SETTING_GROUPS: dict[str, tuple[str, ...]] = {
    "The ten that matter first": (
        *("model_dir", "models", "host", "port", "device", "threads", "max_length", "max_batch_size"),
        *("api_keys", "admin_api_key"),
    ),
    "Models": (
        *("model_name", "model_aliases", "adapters", "models_dir", "max_models", "idle_unload"),
        *("chat_template", "tool_parser"),
    ),
    "Memory and speed": (
        *(
            "scheduler",
            "kv_cache_bytes",
            "kv_cache_type",
            "attention_type",
            "exact",
            "speculation",
            "draft_memory_bytes",
            "draft_model",
            "prefill_chunk",
        ),
        *("itl_target", "cache_dir", "prefix_cache_bytes", "prefix_cache_dir", "prefix_cache_type"),
    ),
    "Queue, time and restarts": (
        *("max_queue", "max_queue_tokens", "request_timeout", "grammar_timeout", "drain_timeout", "step_timeout"),
        *("load_timeout", "max_restarts", "preparation_processes", "max_waiting_grammar_bytes", "pid_file"),
    ),
    "Access": (
        *("api_key_file", "insecure", "max_concurrent_per_key", "rate_per_key", "shared_prefix_cache", "cors_origins"),
        *("tls_cert", "tls_key", "forwarded_allow_ips"),
    ),
    "Requests and connections": (
        *(
            "strict",
            "default_max_tokens",
            "thinking_budget",
            "cap_max_tokens",
            "max_tool_rounds",
            "mcp_hosts",
            "allow_special_tokens",
            "max_body_bytes",
            "max_bodies_bytes",
        ),
        *("max_header_bytes", "idle_timeout", "body_timeout", "upload_timeout", "stall_timeout"),
    ),
    "Images and recordings": (
        *("encoder_weights", "image_hosts", "max_media", "max_media_bytes", "max_image_pixels", "max_request_pixels"),
        *("max_waiting_pixels", "max_media_tokens", "media_timeout"),
        *("max_media_body_bytes", "encoder_cache_bytes", "max_audio_seconds", "audio_timeout"),
        *("max_audio_body_bytes", "max_audio_bodies_bytes", "max_waiting_audio_seconds", "max_prepared_bytes"),
    ),
    "Stored responses, files and batches": (
        *("response_store_size", "response_store_bytes", "response_store_file", "files_dir", "max_file_bytes"),
        *("files_bytes_per_key", "files_bytes", "max_batch_requests"),
    ),
    "Logs, metrics and traces": (
        *(
            "log_level",
            "log_format",
            "metrics",
            "metrics_prefix",
            "metrics_keys",
            "usage_file",
            "otlp_endpoint",
            "telemetry",
            "kv_events",
        ),
        "kv_events_topic",
    ),
    "Profiles": ("profile_dir", "profile_max_files", "profile_max_bytes", "profile_max_age", "profile_max_rows"),
    "Processes and configuration": ("workers", "reload", "ui", "config", "options"),
}
