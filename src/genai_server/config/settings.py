"""The settings: their names, defaults, limits and meaning.

A field's alias is its environment variable. Its command-line option is derived from its name (`max_length`
becomes `--max-length`).
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from genai_server.options.providers import PROVIDERS, meant_devices
from genai_server.quoted_values import quoted

DEVICE_KINDS = (*PROVIDERS, "scripted")
_DEVICE = re.compile(rf"({'|'.join(DEVICE_KINDS)})(:[0-9]{{1,3}})?")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?")
# Valid names of models.
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
# Valid names of adapters, which follow the model's name and a colon in requests.
ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# Valid aliases: also names that other servers use, such as qwen3:4b, and `*` for all other names.
_ALIAS = r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}|\*"

Positive = Annotated[int, Field(gt=0)]


class Settings(BaseModel):
    """All settings of the server. Times are in seconds, sizes in bytes, lengths in tokens."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="forbid")

    host: str = Field("127.0.0.1", alias="HOST", min_length=1, description="Address to listen on.")
    port: int = Field(8002, alias="PORT", ge=0, le=65535, description="Port to listen on; 0 chooses a free one.")
    workers: int = Field(1, alias="WORKERS", ge=1, le=64, description="API processes; all share the same engines.")
    reload: bool = Field(
        False, alias="RELOAD", description="Reload the API, not the engines, when a source file changes."
    )
    model_dir: str = Field(
        "./models/demo",
        alias="GENAI_MODEL_DIR",
        description="Directory of the onnxruntime-genai model. If the default does not exist, an installed copy "
        "serves its bundled demo model.",
    )
    model_name: str = Field(
        "onnx-genai",
        alias="GENAI_MODEL_NAME",
        pattern=f"^{MODEL_NAME}$",
        description="The model's id in requests and answers.",
    )
    models: str = Field(
        "",
        alias="GENAI_MODELS",
        description="Several models instead of one: `small=./models/demo,big=/srv/big`; requests choose by `model`; "
        "the first is the default.",
    )
    adapters: str = Field(
        "",
        alias="GENAI_ADAPTERS",
        description="LoRA adapters, which requests choose by `MODEL:NAME`: `law=./law.onnx_adapter` for the first "
        "model, `big:law=/srv/law.onnx_adapter` for another one.",
    )
    model_aliases: str = Field(
        "",
        alias="GENAI_MODEL_ALIASES",
        description="Additional model names for requests, such as `gpt-4o=onnx-genai,gpt-4o-mini=small`; "
        "`*=onnx-genai` maps all other names to a model.",
    )
    max_models: int = Field(
        0,
        alias="GENAI_MAX_MODELS",
        ge=0,
        description="Maximum number of models loaded at once; 0 sets no limit. A request for another model replaces "
        "the one that has been idle the longest.",
    )
    idle_unload: int = Field(
        0,
        alias="GENAI_IDLE_UNLOAD",
        ge=0,
        le=31_536_000,
        description="Seconds without a request after which a model is unloaded; the next request loads it again. 0 "
        "disables this. An operator's `keep_alive` in Ollama's API overrides it.",
    )
    device: str = Field(
        "cpu",
        alias="GENAI_DEVICE",
        description="`cpu`, `cuda`, `directml` or another execution provider, or a list such as `cpu,cuda:1`; one "
        "engine process for each.",
    )
    max_length: Positive = Field(
        2048,
        alias="GENAI_MAX_LENGTH",
        description="Maximum number of tokens of prompt and answer together; never more than the model's context.",
    )
    max_batch_size: int = Field(
        16,
        alias="GENAI_MAX_BATCH_SIZE",
        ge=1,
        le=1024,
        description="Maximum number of requests that a device runs at once; others wait. On Linux CPUs they also wait "
        "until they fit into `GENAI_KV_CACHE_BYTES`.",
    )
    scheduler: str = Field(
        "auto",
        alias="GENAI_SCHEDULER",
        pattern="^(auto|batched|generator|library)$",
        description="`batched`, `generator` (one request after another, token by token), `library` "
        "(onnxruntime-genai's own batch), or `auto`: `library` for models with paged attention, `batched` for other "
        "models on CPUs if possible, else `generator`.",
    )
    kv_cache_bytes: int = Field(
        0,
        alias="GENAI_KV_CACHE_BYTES",
        ge=0,
        description="Maximum memory for a batch's keys and values, in bytes; 0 uses half of the memory that is free "
        "at startup. On Linux CPUs each running request reserves memory for its prompt plus `max_tokens`.",
    )
    kv_cache_type: str = Field(
        "fp32",
        alias="GENAI_KV_CACHE_TYPE",
        pattern="^(auto|fp32|fp16)$",
        description="Numbers of a batch's keys and values on CPUs: `fp32`, `fp16` (half the memory, slower decoding), "
        "or `auto`: `fp16` if the memory does not hold `GENAI_MAX_BATCH_SIZE` requests of `GENAI_MAX_LENGTH` in 32 "
        "bits. A model built with 16 bits keeps them.",
    )
    exact: bool = Field(
        False,
        alias="GENAI_EXACT",
        description="Make answers bitwise reproducible, independent of other requests, at some cost in speed.",
    )
    tool_parser: str = Field(
        "auto",
        alias="GENAI_TOOL_PARSER",
        description="Format of tool calls, such as `hermes`; `auto` detects it from the chat template, `none` "
        "disables tools.",
    )
    chat_template: str = Field(
        "",
        alias="GENAI_CHAT_TEMPLATE",
        description="Chat template in place of the model's own: a file, or `alpaca`, `chatml`, `gemma`, `llama2`, "
        "`llama3`, `mistral`, `phi-2`, `phi-3`, `vicuna` or `zephyr`; `big=chatml` sets that of a model other than "
        "the first.",
    )
    max_queue: int = Field(
        256,
        alias="GENAI_MAX_QUEUE",
        ge=0,
        description="Maximum number of requests waiting for a device, in addition to `GENAI_MAX_BATCH_SIZE` running "
        "ones; more get a 503.",
    )
    max_queue_tokens: int = Field(
        262_144,
        alias="GENAI_MAX_QUEUE_TOKENS",
        ge=0,
        description="Maximum number of tokens in the prompts of all waiting requests of a device; 0 sets no limit.",
    )
    request_timeout: int = Field(
        600,
        alias="GENAI_REQUEST_TIMEOUT",
        ge=1,
        le=86400,
        description="Seconds after which an answer ends with its text so far; also the maximum timeout of a request.",
    )
    grammar_timeout: int = Field(
        5,
        alias="GENAI_GRAMMAR_TIMEOUT",
        ge=1,
        le=600,
        description="Seconds for checking one grammar, tool or JSON schema; a longer check results in a 400.",
    )
    prefill_chunk: int = Field(
        128,
        alias="GENAI_PREFILL_CHUNK",
        ge=2,
        description="Maximum number of prompt tokens read in one step while other requests are decoded; fewer if "
        "those would be delayed.",
    )
    prefill_weights: str = Field(
        "auto",
        alias="GENAI_PREFILL_WEIGHTS",
        pattern="^(auto|int4|int8)$",
        description="Weights for CPU steps of many tokens: `int4` uses the model's own; `int8` uses 8-bit weights "
        "made from them where that is faster; `auto` does so if it is 1.2 times as fast and they fit into a quarter "
        "of the free memory.",
    )
    itl_target: float = Field(
        0.0,
        alias="GENAI_ITL_TARGET",
        ge=0,
        le=3600,
        description="Maximum seconds until a running answer's next token while prompts are read; 0 allows four times "
        "the usual time, and more the more prompts wait.",
    )
    speculation: str = Field(
        "auto",
        alias="GENAI_SPECULATION",
        pattern="^(auto|off)$",
        description="`auto` drafts the next tokens of answers in the batch on the CPU, and checks them in one step "
        "where that is faster; `off` disables drafts.",
    )
    threads: int = Field(
        0,
        alias="GENAI_THREADS",
        ge=0,
        le=1024,
        description="Threads of a CPU operator; 0 uses as many as the process has physical cores.",
    )
    cache_dir: str = Field(
        "",
        alias="GENAI_CACHE_DIR",
        description="Folder for packed weights, which all engines share; empty uses the user's cache, `none` disables "
        "it.",
    )
    models_dir: str = Field(
        "",
        alias="GENAI_MODELS_DIR",
        description="Folder into which `pull` and `export` put models; empty uses the user's data folder.",
    )
    strict: bool = Field(
        False,
        alias="GENAI_STRICT",
        description="Also refuse fields without effect in /v1/messages, /v1/responses, /v1/chat/completions and "
        "Ollama's API, and schemas that can only be followed in part; otherwise the header `x-genai-ignored` names "
        "them.",
    )
    cap_max_tokens: bool = Field(
        True,
        alias="GENAI_CAP_MAX_TOKENS",
        description="Reduce a `max_tokens` of /v1/messages, or a `num_predict` of Ollama's API, above "
        "GENAI_MAX_LENGTH to what fits; if disabled, and with GENAI_STRICT, such a value is a 400.",
    )
    allow_special_tokens: bool = Field(
        False,
        alias="GENAI_ALLOW_SPECIAL_TOKENS",
        description="Let messages and tools contain the tokens that structure a prompt, such as the end of a turn.",
    )
    max_body_bytes: Positive = Field(
        1024 * 1024, alias="GENAI_MAX_BODY_BYTES", description="Maximum size of a request body, in bytes."
    )
    max_bodies_bytes: Positive = Field(
        256 * 1024 * 1024,
        alias="GENAI_MAX_BODIES_BYTES",
        description="Maximum bytes of all bodies together in each API process, of unfinished requests and of "
        "incomplete WebSocket messages; more get a 503.",
    )
    response_store_size: int = Field(
        256,
        alias="GENAI_RESPONSE_STORE_SIZE",
        ge=0,
        le=1_000_000,
        description="Maximum number of stored responses of /v1/responses, and of conversations, by each API process "
        "or in GENAI_RESPONSE_STORE_FILE; the least recently used are removed. 0 stores none.",
    )
    response_store_bytes: Positive = Field(
        64 * 1024 * 1024,
        alias="GENAI_RESPONSE_STORE_BYTES",
        description="Maximum bytes of these responses with their conversations, counted as JSON.",
    )
    response_store_file: str = Field(
        "",
        alias="GENAI_RESPONSE_STORE_FILE",
        description="File for responses and conversations, which then survive a restart and are shared by all API "
        "processes, within the same limits; empty stores them in memory.",
    )
    drain_timeout: int = Field(
        30,
        alias="GENAI_DRAIN_TIMEOUT",
        ge=0,
        le=86400,
        description="Seconds for which running answers may continue after the server receives a signal to stop.",
    )
    step_timeout: int = Field(
        60,
        alias="GENAI_STEP_TIMEOUT",
        ge=0,
        le=86400,
        description="Seconds, plus 0.1 per token of the step, after which a step counts as hung and the engine is "
        "killed and restarted; 0 sets no limit.",
    )
    load_timeout: int = Field(
        1800,
        alias="GENAI_LOAD_TIMEOUT",
        ge=0,
        le=86400,
        description="Maximum seconds for an engine to load its model; 0 sets no limit.",
    )
    max_restarts: int = Field(
        8,
        alias="GENAI_MAX_RESTARTS",
        ge=0,
        description="Number of consecutive restarts, none of which served for a minute, before an engine's device is "
        "given up.",
    )
    api_keys: str | None = Field(
        None,
        alias="GENAI_API_KEYS",
        repr=False,
        description="Comma-separated API keys, each `NAME:KEY` or `KEY`; without any, clients need no key.",
    )
    api_key_file: str = Field(
        "",
        alias="GENAI_API_KEY_FILE",
        description="File with more keys, one line of `genai-server key` each; read again on SIGHUP.",
    )
    admin_api_key: str | None = Field(
        None,
        alias="GENAI_ADMIN_API_KEY",
        repr=False,
        description="Key for the admin endpoints; without it, and without API keys, they serve only this machine.",
    )
    insecure: bool = Field(
        False, alias="GENAI_INSECURE", description="Serve every client that can reach the server, without API keys."
    )
    max_concurrent_per_key: int = Field(
        0,
        alias="GENAI_MAX_CONCURRENT_PER_KEY",
        ge=0,
        description="Maximum number of concurrent requests of a key, and of concurrent reads of what it has stored, "
        "in each API process; more get a 429. 0 sets no limit.",
    )
    rate_per_key: int = Field(
        0,
        alias="GENAI_RATE_PER_KEY",
        ge=0,
        le=100_000,
        description="Maximum number of requests of a key within a minute, in each API process; 0 sets no limit.",
    )
    shared_prefix_cache: bool = Field(
        False,
        alias="GENAI_SHARED_PREFIX_CACHE",
        description="Share cached prompt prefixes between keys; a key can then detect the prompts of others.",
    )
    cors_origins: str = Field(
        "",
        alias="GENAI_CORS_ORIGINS",
        description="Comma-separated origins of web pages that may use the API, such as `https://app.example`.",
    )
    tls_cert: str = Field(
        "", alias="GENAI_TLS_CERT", description="PEM file with the certificate and its chain, to serve HTTPS."
    )
    tls_key: str = Field(
        "", alias="GENAI_TLS_KEY", description="PEM file with its private key; empty reads it from GENAI_TLS_CERT."
    )
    forwarded_allow_ips: str = Field(
        "",
        alias="GENAI_FORWARDED_ALLOW_IPS",
        description="Comma-separated addresses or networks of trusted proxies (X-Forwarded-For and -Proto).",
    )
    max_header_bytes: int = Field(
        65_536,
        alias="GENAI_MAX_HEADER_BYTES",
        ge=1024,
        le=16 * 1024 * 1024,
        description="Maximum size of a request's head (its first line and its headers), in bytes.",
    )
    idle_timeout: Positive = Field(
        30,
        alias="GENAI_IDLE_TIMEOUT",
        le=86400,
        description="Seconds after which a connection without a complete request head is closed.",
    )
    body_timeout: Positive = Field(
        60,
        alias="GENAI_BODY_TIMEOUT",
        le=86400,
        description="Seconds within which the body of a request, or a message on a WebSocket, must arrive.",
    )
    stall_timeout: Positive = Field(
        30,
        alias="GENAI_STALL_TIMEOUT",
        le=86400,
        description="Seconds without a byte read by the client after which its request is cancelled.",
    )
    profile_dir: Path = Field(
        Path("./profiles"), alias="GENAI_PROFILE_DIR", description="Folder for the per-token profiles."
    )
    profile_max_files: Positive = Field(
        1000,
        alias="GENAI_PROFILE_MAX_FILES",
        description="Maximum number of files in that folder; the oldest sessions are removed, and profiling stops "
        "when only running ones are left.",
    )
    profile_max_bytes: Positive = Field(
        256 * 1024 * 1024,
        alias="GENAI_PROFILE_MAX_BYTES",
        description="Maximum bytes in that folder; enforced in the same way.",
    )
    profile_max_age: Positive = Field(
        30 * 24 * 3600,
        alias="GENAI_PROFILE_MAX_AGE",
        description="Seconds after which a profile session is removed, at startup and when profiling is switched on.",
    )
    profile_max_rows: Positive = Field(
        1,
        alias="GENAI_PROFILE_MAX_ROWS",
        description="Maximum number of requests of a batch that are profiled at a time when a device is profiled.",
    )
    config: str = Field(
        "",
        alias="GENAI_CONFIG",
        description="Configuration file with these settings and the session options of each device; empty uses "
        "`genai-server.toml` in the working directory, if it exists.",
    )
    options: str = Field(
        "",
        alias="GENAI_OPTIONS",
        repr=False,
        description="Session and provider options as TOML, which override those of the file.",
    )
    log_level: str = Field(
        "info",
        alias="GENAI_LOG_LEVEL",
        pattern="^(debug|info|warning|error)$",
        description="`debug`, `info`, `warning` or `error`.",
    )
    log_format: str = Field(
        "text",
        alias="GENAI_LOG_FORMAT",
        pattern="^(text|json)$",
        description="`text`, or `json` for one object per line.",
    )
    metrics: str = Field(
        "key",
        alias="GENAI_METRICS",
        pattern="^(key|open|off)$",
        description="Access to /metrics: `key` requires an API key if the API does, `open` requires none, `off` "
        "disables it.",
    )
    metrics_prefix: str = Field(
        "genai:",
        alias="GENAI_METRICS_PREFIX",
        pattern="^[A-Za-z_][A-Za-z0-9_]{0,31}:$",
        description="Prefix of all names in /metrics; routers and dashboards for vLLM expect `vllm:`.",
    )
    kv_events: str = Field(
        "",
        alias="GENAI_KV_EVENTS",
        pattern=r"^(tcp://[^\s/]+:[0-9]{1,5})?$",
        description="ZeroMQ address, such as `tcp://*:5557`, at which engines publish what their prefix caches store "
        "and remove, including the tokens of prompts; each further engine uses the next port. Needs the extra "
        "`kv-events`; empty disables it.",
    )
    kv_events_topic: str = Field(
        "",
        alias="GENAI_KV_EVENTS_TOPIC",
        max_length=512,
        description="Topic of these events, such as `kv@10.0.0.7:8002@{model}` for llm-d; `{model}` is the model's "
        "name.",
    )
    ui: bool = Field(True, alias="GENAI_UI", description="Serve the web page at `/`; `false` disables it.")
    telemetry: bool = Field(
        False,
        alias="GENAI_TELEMETRY",
        description="Let ONNX Runtime and onnxruntime-genai report to Microsoft how the engines use them.",
    )
    otlp_endpoint: str = Field(
        "",
        alias="GENAI_OTLP_ENDPOINT",
        pattern="^(https?://.+)?$",
        description="HTTP endpoint for traces, such as `http://localhost:4318/v1/traces`; needs the extra `otel`. "
        "Empty disables them.",
    )

    @field_validator("device")
    @classmethod
    def _known_devices(cls, value: str) -> str:
        return ",".join(device_list(value))

    @property
    def devices(self) -> list[str]:
        """The configured devices, in order."""
        return self.device.split(",")

    @field_validator("models")
    @classmethod
    def _are_models(cls, value: str) -> str:
        entries = [entry.partition("=") for entry in _listed(value)] if value else []
        for name, _, path in entries:
            if not re.fullmatch(MODEL_NAME, name) or not path:
                raise ValueError(f"{quoted(name)} is not a model with its directory, such as small=./models/demo")
        if len({name for name, _, _ in entries}) < len(entries):
            raise ValueError("a model is named twice")
        return value

    @property
    def served(self) -> dict[str, str]:
        """The directory of each model, by the model's name. Requests that name no model use the first."""
        if not self.models:
            return {self.model_name: self.model_dir}
        return {name: path for name, _, path in (entry.partition("=") for entry in _listed(self.models))}

    @field_validator("adapters")
    @classmethod
    def _are_adapters(cls, value: str, info: ValidationInfo) -> str:
        served = _named(info)
        names = []
        for entry in _listed(value) if value else []:
            id, _, path = entry.partition("=")
            model, name = _adapter_id(id)
            if not re.fullmatch(ADAPTER_NAME, name) or not path:
                raise ValueError(f"{quoted(id)} is not an adapter with its file, such as law=./law.onnx_adapter")
            if model and model not in served:
                raise ValueError(f"{quoted(id)} belongs to a model that is not served")
            names.append((model or served[0], name))
        if len(set(names)) < len(names):
            raise ValueError("an adapter is named twice")
        return value

    @field_validator("model_aliases")
    @classmethod
    def _are_aliases(cls, value: str, info: ValidationInfo) -> str:
        models = _named(info)
        entries = [entry.partition("=") for entry in _listed(value)] if value else []
        for alias, _, model in entries:
            if not re.fullmatch(_ALIAS, alias) or not model:
                raise ValueError(f"{quoted(alias)} is not an alias with its model, such as gpt-4o=onnx-genai")
            if model not in models:
                raise ValueError(f"{quoted(alias)} is an alias of {quoted(model)}, a model that is not served")
            if alias in models:
                raise ValueError(f"{quoted(alias)} is the name of a model")
        if len({alias for alias, _, _ in entries}) < len(entries):
            raise ValueError("an alias is named twice")
        return value

    @property
    def aliases(self) -> dict[str, str]:
        """The model of each alias."""
        entries = (entry.partition("=") for entry in _listed(self.model_aliases) if entry)
        return {alias: model for alias, _, model in entries}

    @field_validator("chat_template")
    @classmethod
    def _are_chat_templates(cls, value: str, info: ValidationInfo) -> str:
        models = _named(info)
        owners = []
        for entry in _listed(value) if value else []:
            model, template = _chat_template(entry)
            if model and model not in models:
                raise ValueError(f"{quoted(entry)} is for a model that is not served")
            if not template:
                raise ValueError(f"{quoted(entry)} is not a chat template, such as chatml, ./chat.jinja or big=chatml")
            owners.append(model or models[0])
        if len(set(owners)) < len(owners):
            raise ValueError("a model has two chat templates")
        return value

    def chat_template_of(self, model: str) -> str:
        """The file or name of the chat template that replaces a model's own; "" for none."""
        first = next(iter(self.served))
        found = map(_chat_template, _listed(self.chat_template))
        return next((template for of, template in found if (of or first) == model), "")

    def adapter_files(self, model: str) -> dict[str, str]:
        """The file of each adapter of a model, by the adapter's name."""
        first = next(iter(self.served))
        entries = (entry.partition("=") for entry in _listed(self.adapters) if entry)
        found = ((*_adapter_id(id), path) for id, _, path in entries)
        return {name: path for of, name, path in found if (of or first) == model}

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        for origin in filter(None, _listed(value)):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{quoted(origin)} is not an origin, such as https://app.example or http://localhost:3000"
                )
        return value

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for address in filter(None, _listed(value)):
            ipaddress.ip_network(address, strict=False)
        return value

    @property
    def origins(self) -> list[str]:
        """The origins of the web pages that may use the API."""
        return [origin for origin in _listed(self.cors_origins) if origin]

    @property
    def cache_path(self) -> Path | None:
        """The folder for packed weights; None to do without."""
        if self.cache_dir == "none":
            return None
        return Path(self.cache_dir) if self.cache_dir else platformdirs.user_cache_path("genai-server")

    @property
    def models_path(self) -> Path:
        """The folder of the models that were fetched or built."""
        if self.models_dir:
            return Path(self.models_dir).expanduser()
        return platformdirs.user_data_path("genai-server") / "models"

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def _listed(text: str) -> list[str]:
    """The entries of a comma-separated list."""
    return [entry.strip() for entry in text.split(",")]


def _named(info: ValidationInfo) -> list[str]:
    """The names of the served models, from the settings that were validated before."""
    models = info.data.get("models")
    return [entry.partition("=")[0] for entry in _listed(models)] if models else [str(info.data.get("model_name"))]


def _chat_template(entry: str) -> tuple[str, str]:
    """The model, or "" for the first, and its chat template."""
    model, equals, template = entry.partition("=")
    return (model, template) if equals else ("", entry)


def _adapter_id(id: str) -> tuple[str, str]:
    """The model, or "" for the first, and the name of an adapter."""
    model, _, name = id.rpartition(":")
    return model, name


def device_list(value: str) -> list[str]:
    """The devices in a text such as `cpu,cuda:1`. Raises ValueError."""
    names = _listed(value)
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise ValueError(f"unknown device {quoted(name)}{meant_devices(name)}")
    if len(set(names)) < len(names):
        raise ValueError("a device is named twice")
    return names


def environment_variable(name: str) -> str:
    """The environment variable of a field of Settings."""
    alias = Settings.model_fields[name].alias
    assert alias is not None
    return alias


def option(name: str) -> str:
    """The command-line option of a field of Settings."""
    return "--" + name.replace("_", "-")


def is_loopback(host: str) -> bool:
    """Whether a host name or address always means this machine, whatever a name server says."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
