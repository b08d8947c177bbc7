"""The settings: their names, defaults, limits and meaning.

A field's docstring is its description in `--help` and docs/settings.md. Its name becomes its environment variable and
its command-line option: `max_length` is GENAI_MAX_LENGTH and `--max-length`.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from genai_server.options.providers import PROVIDERS, meant_devices
from genai_server.quoted_values import quoted

DEVICE_KINDS = (*PROVIDERS, "scripted")
_DEVICE = re.compile(rf"({'|'.join(DEVICE_KINDS)})(:[0-9]{{1,3}})?")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?")
_IMAGE_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")
_MAX_NAME = 128
# Valid names of models.
MODEL_NAME = rf"[A-Za-z0-9][A-Za-z0-9._/-]{{0,{_MAX_NAME - 1}}}"
# Characters of a directory's name that a model's name must not have.
_UNNAMEABLE = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]")
# Valid names of adapters, which follow the model's name and a colon in requests.
ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# Valid aliases: also names that other servers use, such as qwen3:4b, and `*` for all other names.
_ALIAS = r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}|\*"

# Fields whose environment variables other servers read, too; those of all others begin with GENAI_.
_UNPREFIXED = ("host", "port", "workers", "reload")
# Former names of fields, which are read where the present name is not given.
FORMER_NAMES = {
    "max_media": "max_images",
    "max_media_bytes": "max_image_bytes",
    "max_media_tokens": "max_image_tokens",
    "max_media_body_bytes": "max_image_body_bytes",
    "media_timeout": "image_timeout",
}

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
# What lets the server choose a number.
AUTO: Literal["auto"] = "auto"


def environment_variable(name: str) -> str:
    """The environment variable of a field of Settings."""
    return name.upper() if name in _UNPREFIXED else f"GENAI_{name.upper()}"


class Settings(BaseModel):
    """All settings of the server. Times are in seconds, sizes in bytes, lengths in tokens."""

    model_config = ConfigDict(
        frozen=True,
        populate_by_name=True,
        extra="forbid",
        alias_generator=environment_variable,
        use_attribute_docstrings=True,
    )

    host: str = Field("127.0.0.1", min_length=1)
    """Address to listen on."""

    port: int = Field(8002, ge=0, le=65535)
    """Port to listen on; 0 chooses a free one."""

    workers: int = Field(1, ge=1, le=64)
    """API processes; all share the same engines."""

    reload: bool = False
    """Reload the API, not the engines, when a source file changes."""

    model_dir: str = "./models/demo"
    """Directory of the onnxruntime-genai model. Without the default one, an installed copy serves its demo model."""

    model_name: str = Field("", pattern=f"^({MODEL_NAME})?$", validate_default=True)
    """The model's id in requests and answers; empty uses the name of its directory."""

    models: str = ""
    """Several models instead of one: `small=./models/demo,big=/srv/big`; requests choose by `model`, by default the
    first.
    """

    adapters: str = ""
    """LoRA adapters, which requests choose by `MODEL:NAME`: `law=./law.onnx_adapter` for the first model,
    `big:law=/srv/law.onnx_adapter` for another.
    """

    model_aliases: str = ""
    """Additional model names, such as `gpt-4o=big,gpt-4o-mini=small`; `*=big` maps all other names to a model."""

    max_models: NotNegative | Literal["auto"] = AUTO
    """Maximum number of models loaded at once; `auto`: as many as the memory holds; 0 sets no limit. A request for
    another model replaces the one idle for longest.
    """

    idle_unload: int = Field(0, ge=0, le=31_536_000)
    """Seconds without a request after which a model is unloaded, until the next one; 0 disables this. `keep_alive` in
    Ollama's API overrides it.
    """

    device: str = "cpu"
    """`cpu`, `cuda`, `directml` or another execution provider, or a list such as `cpu,cuda:1`; each gets an engine
    process.
    """

    max_length: Positive | Literal["auto"] = AUTO
    """Maximum number of tokens of prompt and answer together; `auto`: the model's context, or what of it the memory for
    keys and values holds (`GENAI_KV_CACHE_BYTES`).
    """

    max_batch_size: int = Field(16, ge=1, le=1024)
    """Maximum number of requests that a device runs at once; others wait. On Linux CPUs memory may hold fewer
    (`GENAI_KV_CACHE_BYTES`).
    """

    scheduler: Literal["auto", "batched", "generator", "library"] = "auto"
    """`batched`, `generator` (one request after another), `library` (onnxruntime-genai's own batch), or `auto`:
    `library` for models with paged attention, `batched` for others on CPUs if possible, else `generator`.
    """

    kv_cache_bytes: int = Field(0, ge=0)
    """Maximum memory for the keys and values of each engine, in bytes; 0 divides half of the free memory among the
    models.
    """

    kv_cache_type: Literal["auto", "fp32", "fp16"] = "fp32"
    """Numbers of a batch's keys and values on CPUs: `fp32`, `fp16` (half the memory, slower decoding), or `auto`:
    `fp16` where the memory does not hold the model's context, or `GENAI_MAX_BATCH_SIZE` requests of `GENAI_MAX_LENGTH`,
    in 32 bits.
    """

    exact: bool = False
    """Make answers bitwise reproducible, independent of other requests, at some cost in speed."""

    tool_parser: str = "auto"
    """Format of tool calls, such as `hermes`; `auto` detects it from the chat template, `none` disables tools."""

    chat_template: str = ""
    """Chat template in place of the model's own: a file, or `alpaca`, `chatml`, `gemma`, `llama2`, `llama3`, `mistral`,
    `phi-2`, `phi-3`, `vicuna` or `zephyr`; `big=chatml` sets that of a model other than the first.
    """

    max_queue: int = Field(256, ge=0)
    """Maximum number of requests waiting for a device; more get a 503. Requests of batches count separately."""

    max_queue_tokens: int = Field(262_144, ge=0)
    """Maximum number of prompt tokens of all waiting requests of a device, batches aside; 0 sets no limit."""

    request_timeout: int = Field(600, ge=1, le=86400)
    """Seconds after which an answer ends with its text so far; also the maximum timeout of a request."""

    grammar_timeout: int = Field(5, ge=1, le=600)
    """Seconds for checking one grammar, tool or JSON schema; a longer check results in a 400."""

    prefill_chunk: int = Field(128, ge=2)
    """Maximum number of prompt tokens read in one step while other requests are decoded."""

    prefill_weights: Literal["auto", "int4", "int8"] = "auto"
    """Weights for CPU steps of many tokens: `int4` (the model's own), `int8` (made from them, where that is faster), or
    `auto`: `int8` if 1.2 times as fast and a quarter of the free memory holds them.
    """

    itl_target: float = Field(0.0, ge=0, le=3600)
    """Maximum seconds until a running answer's next token while prompts are read; 0 allows four times the usual time,
    and more if many prompts wait.
    """

    speculation: Literal["auto", "off"] = "auto"
    """`auto` drafts the next tokens of answers in the batch on the CPU where that is faster; `off` disables drafts."""

    draft_memory_bytes: int = Field(32 * 1024 * 1024, ge=0)
    """Maximum bytes of earlier answers that each engine keeps for drafts, separated by API key; a token takes 12. The
    oldest ones of the key used least recently are dropped first; 0 keeps none.
    """

    draft_model: str = ""
    """Directory of a much smaller model with the same tokenizer, which drafts the first model's next tokens where that
    is faster; `big=./small` sets that of another model.
    """

    threads: int = Field(0, ge=0, le=1024)
    """Threads of a CPU operator; 0 uses as many as the process has physical cores."""

    cache_dir: str = ""
    """Folder for packed weights, which all engines share; empty uses the user's cache, `none` disables it."""

    prefix_cache_bytes: str = Field("0", pattern="^(auto|[0-9]{1,18})$")
    """Maximum bytes of the prefix cache on disk, from which engines load keys and values of prompts after a restart.
    `auto` is a tenth of the disk's free space, 0 keeps none.
    """

    prefix_cache_dir: str = ""
    """Folder for the prefix cache on disk, which all engines of the host share; empty uses `prefixes` in
    `GENAI_CACHE_DIR`.
    """

    prefix_cache_type: Literal["same", "fp16"] = "same"
    """Numbers in the prefix cache on disk: the `same` as in memory, or `fp16`, which halves the files but rounds; exact
    requests do not use them.
    """

    models_dir: str = ""
    """Folder into which `pull` and `export` put models; empty uses the user's data folder."""

    strict: bool = False
    """Also refuse fields without effect, and schemas that can only be followed in part; otherwise the header
    `x-genai-ignored` names them.
    """

    cap_max_tokens: bool = True
    """Reduce a `max_tokens` of /v1/messages, or a `num_predict` of Ollama's API, above the context to what fits;
    otherwise, and with GENAI_STRICT, it is a 400.
    """

    allow_special_tokens: bool = False
    """Let messages and tools contain the tokens that structure a prompt, such as the end of a turn."""

    max_body_bytes: Positive = 1024 * 1024
    """Maximum size of a request body, in bytes."""

    max_media_body_bytes: int = Field(96 * 1024 * 1024, ge=0)
    """Maximum size of a request body, in bytes, while a model that takes images or sounds is served, if that is more
    than `GENAI_MAX_BODY_BYTES`. Both have a third more bytes in base64 than their files.
    """

    max_bodies_bytes: Positive = 256 * 1024 * 1024
    """Maximum bytes of all bodies of unfinished requests and WebSocket messages together in each API process; more get
    a 503.
    """

    image_hosts: str = ""
    """Comma-separated hosts with public addresses from which the server may fetch images, such as
    `images.example,cdn.example:8443`. Empty allows none: images are sent as data URLs.
    """

    max_media: Positive = 16
    """Maximum number of images or sounds in a request."""

    max_media_bytes: Positive = 20 * 1024 * 1024
    """Maximum size of the file of an image or sound, in bytes."""

    max_image_pixels: Positive = Field(50_000_000, le=500_000_000)
    """Maximum number of pixels of an image, width times height. A process that reads images may take 1 GiB and 40 bytes
    for each.
    """

    max_media_tokens: Positive = 16_384
    """Maximum number of prompt tokens of all images or sounds of a request; the model decides how many each takes."""

    media_timeout: Positive = Field(10, le=600)
    """Seconds for fetching an image, and for decoding and preparing an image or sound; a longer time is a 400."""

    encoder_cache_bytes: int = Field(256 * 1024 * 1024, ge=0)
    """Maximum bytes of prepared images (files of each API process) and of encoded images and sounds (memory of each
    engine) that are kept for later requests.
    """

    max_audio_body_bytes: Positive = 200 * 1024 * 1024
    """Maximum size of the body of a request with a recording, in bytes. It is written to a file while it arrives."""

    max_audio_bodies_bytes: Positive = 2 * 1024 * 1024 * 1024
    """Maximum bytes of all these bodies together in each API process; more get a 503."""

    max_audio_seconds: Positive = Field(7200, le=86_400)
    """Maximum length of a recording, or of a sound in a chat, in seconds. Each of these takes 32 kB of disk space while
    a recording is transcribed.
    """

    audio_timeout: Positive = Field(10, le=600)
    """Seconds for finding the next speech in a recording and preparing it; a longer time results in a 400. Decoding may
    take one more for each 15 kB of the file.
    """

    response_store_size: int = Field(256, ge=0, le=1_000_000)
    """Maximum number of stored responses and conversations, by each API process or in GENAI_RESPONSE_STORE_FILE; the
    least recently used are removed. 0 stores none.
    """

    response_store_bytes: Positive = 64 * 1024 * 1024
    """Maximum bytes of these responses with their conversations, counted as JSON."""

    response_store_file: str = ""
    """File for responses and conversations, which then survive a restart and are shared by all API processes; empty
    stores them in memory.
    """

    files_dir: str = ""
    """Folder for the files of /v1/files and the state of /v1/batches, shared by all API processes; it is created if it
    is missing. Empty disables both.
    """

    max_file_bytes: Positive = 512 * 1024 * 1024
    """Maximum size of an upload to /v1/files, in bytes."""

    files_bytes_per_key: Positive = 4 * 1024 * 1024 * 1024
    """Maximum bytes of an API key's files, including results of batches; beyond it uploads are refused, and batches
    wait. Each file counts as at least 4096.
    """

    files_bytes: Positive = 16 * 1024 * 1024 * 1024
    """Maximum bytes of all files in GENAI_FILES_DIR; enforced in the same way."""

    max_batch_requests: Positive = 100_000
    """Maximum number of requests in a batch."""

    drain_timeout: int = Field(30, ge=0, le=86400)
    """Seconds for which running answers may continue after the server receives a signal to stop."""

    step_timeout: int = Field(60, ge=0, le=86400)
    """Seconds, plus 0.1 per token of the step, after which an engine is considered hung and is restarted; 0 sets no
    limit.
    """

    load_timeout: int = Field(1800, ge=0, le=86400)
    """Maximum seconds for an engine to load its model; 0 sets no limit."""

    max_restarts: int = Field(8, ge=0)
    """Number of consecutive restarts, none of which served for a minute, before an engine's device is given up."""

    api_keys: str | None = Field(None, repr=False)
    """Comma-separated API keys, each `NAME:KEY` or `KEY`; without any, clients need no key."""

    api_key_file: str = ""
    """File with more keys, one line of `genai-server key` each; read again on SIGHUP."""

    admin_api_key: str | None = Field(None, repr=False)
    """Key for the admin endpoints; without it, and without API keys, they serve only this machine."""

    insecure: bool = False
    """Serve every client that can reach the server, without API keys."""

    max_concurrent_per_key: int = Field(0, ge=0)
    """Maximum number of concurrent requests of a key, and of concurrent reads of what it stored, in each API process;
    more get a 429. 0 sets no limit.
    """

    rate_per_key: int = Field(0, ge=0, le=100_000)
    """Maximum number of requests of a key within a minute, in each API process; 0 sets no limit."""

    shared_prefix_cache: bool = False
    """Share cached prompt prefixes between keys; a key can then detect the prompts of others."""

    cors_origins: str = ""
    """Comma-separated origins of web pages that may use the API, such as `https://app.example`."""

    tls_cert: str = ""
    """PEM file with the certificate and its chain, to serve HTTPS."""

    tls_key: str = ""
    """PEM file with its private key; empty reads it from GENAI_TLS_CERT."""

    forwarded_allow_ips: str = ""
    """Comma-separated addresses or networks of trusted proxies (X-Forwarded-For and -Proto)."""

    max_header_bytes: int = Field(65_536, ge=1024, le=16 * 1024 * 1024)
    """Maximum size of a request's head (its first line and its headers), in bytes."""

    idle_timeout: Positive = Field(30, le=86400)
    """Seconds after which a connection without a complete request head is closed."""

    body_timeout: Positive = Field(60, le=86400)
    """Seconds within which a request's body, or a WebSocket message, must arrive; with a recording each MiB of it."""

    stall_timeout: Positive = Field(30, le=86400)
    """Seconds without a byte read by the client after which its request is cancelled."""

    profile_dir: Path = Path("./profiles")
    """Folder for the per-token profiles."""

    profile_max_files: Positive = 1000
    """Maximum number of files in that folder; the oldest sessions are removed, then profiling stops."""

    profile_max_bytes: Positive = 256 * 1024 * 1024
    """Maximum bytes in that folder; enforced in the same way."""

    profile_max_age: Positive = 30 * 24 * 3600
    """Seconds after which a profile session is removed, at startup and when profiling is switched on."""

    profile_max_rows: Positive = 1
    """Maximum number of requests of a batch that are profiled at a time when a device is profiled."""

    config: str = ""
    """Configuration file with these settings and session options; empty uses `genai-server.toml` in the working
    directory, if it exists.
    """

    options: str = Field("", repr=False)
    """Session and provider options as TOML, which override those of the file."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`debug`, `info`, `warning` or `error`."""

    log_format: Literal["text", "json"] = "text"
    """`text`, or `json` for one object per line."""

    metrics: Literal["key", "open", "off"] = "key"
    """Access to /metrics: `key` requires an API key if the API does, `open` requires none, `off` disables it."""

    metrics_prefix: str = Field("genai:", pattern="^[A-Za-z_][A-Za-z0-9_]{0,31}:$")
    """Prefix of all names in /metrics; routers and dashboards for vLLM expect `vllm:`."""

    kv_events: str = Field("", pattern=r"^(tcp://[^\s/]+:[0-9]{1,5})?$")
    """ZeroMQ address, such as `tcp://*:5557`, at which engines publish what their prefix caches hold, including tokens
    of prompts; each further engine uses the next port. Needs the extra `kv-events`.
    """

    kv_events_topic: str = Field("", max_length=512)
    """Topic of these events, such as `kv@10.0.0.7:8002@{model}` for llm-d; `{model}` is the model's name."""

    ui: bool = True
    """Serve the web page at `/`; `false` disables it."""

    telemetry: bool = False
    """Let ONNX Runtime and onnxruntime-genai report to Microsoft how the engines use them."""

    otlp_endpoint: str = Field("", pattern="^(https?://.+)?$")
    """HTTP endpoint for traces, such as `http://localhost:4318/v1/traces`; needs the extra `otel`. Empty disables them.
    """

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
        entries = _pairs(value)
        for name, path in entries:
            if not re.fullmatch(MODEL_NAME, name) or not path:
                raise ValueError(f"{quoted(name)} is not a model with its directory, such as small=./models/demo")
        _require_distinct([name for name, _ in entries], "a model is named twice")
        return value

    @field_validator("adapters")
    @classmethod
    def _are_adapters(cls, value: str, info: ValidationInfo) -> str:
        models = _named(info)
        for id, path in _pairs(value):
            model, _, name = id.rpartition(":")
            if not re.fullmatch(ADAPTER_NAME, name) or not path:
                raise ValueError(f"{quoted(id)} is not an adapter with its file, such as law=./law.onnx_adapter")
            if model and model not in models:
                raise ValueError(f"{quoted(id)} belongs to a model that is not served")
        _require_distinct(
            [(model, name) for model, name, _ in _adapters(value, models[0])], "an adapter is named twice"
        )
        return value

    @field_validator("model_aliases")
    @classmethod
    def _are_aliases(cls, value: str, info: ValidationInfo) -> str:
        models = _named(info)
        entries = _pairs(value)
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
        _require_distinct([alias for alias, _ in entries], "an alias is named twice")
        return value

    @field_validator("chat_template")
    @classmethod
    def _are_chat_templates(cls, value: str, info: ValidationInfo) -> str:
        example = "a chat template, such as chatml, ./chat.jinja or big=chatml"
        return _one_for_each_model(value, _named(info), example, "a model has two chat templates")

    @field_validator("draft_model")
    @classmethod
    def _are_draft_models(cls, value: str, info: ValidationInfo) -> str:
        example = "the directory of a draft model, such as ./small or big=./small"
        return _one_for_each_model(value, _named(info), example, "a model has two draft models")

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        for origin in filter(None, _listed(value)):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{quoted(origin)} is not an origin, such as https://app.example or http://localhost:3000"
                )
        return value

    @field_validator("image_hosts")
    @classmethod
    def _are_hosts(cls, value: str) -> str:
        for host in filter(None, _listed(value)):
            if not _IMAGE_HOST.fullmatch(host):
                raise ValueError(f"{quoted(host)} is not a host, such as images.example or cdn.example:8443")
        return value

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for address in filter(None, _listed(value)):
            try:
                ipaddress.ip_network(address, strict=False)
            except ValueError:
                raise ValueError(f"{quoted(address)} is not an address or a network, such as 10.0.0.0/8") from None
        return value

    @property
    def devices(self) -> list[str]:
        """The configured devices, in order."""
        return self.device.split(",")

    def within(self, context_length: int | None) -> int | None:
        """The limit of a model's sequences as far as the settings tell; None if they allow any number."""
        if isinstance(self.max_length, str):
            return context_length
        return min(self.max_length, context_length or self.max_length)

    @property
    def served(self) -> dict[str, str]:
        """The directory of each model, by the model's name. Requests that name no model use the first."""
        return dict(_pairs(self.models)) or {self.model_name: self.model_dir}

    @property
    def aliases(self) -> dict[str, str]:
        """The model of each alias."""
        return dict(_pairs(self.model_aliases))

    def chat_template_of(self, model: str) -> str:
        """The file or name of the chat template that replaces a model's own; "" for none."""
        return dict(_of_models(self.chat_template, next(iter(self.served)))).get(model, "")

    def draft_model_of(self, model: str) -> str:
        """The directory of a model's draft model; "" for none, also if drafts are off."""
        if self.speculation == "off":
            return ""
        return dict(_of_models(self.draft_model, next(iter(self.served)))).get(model, "")

    def adapter_files(self, model: str) -> dict[str, str]:
        """The file of each adapter of a model, by the adapter's name."""
        first = next(iter(self.served))
        return {name: path for of, name, path in _adapters(self.adapters, first) if of == model}

    @property
    def origins(self) -> list[str]:
        """The origins of the web pages that may use the API."""
        return [origin for origin in _listed(self.cors_origins) if origin]

    @property
    def allowed_image_hosts(self) -> frozenset[str]:
        """The hosts, with ports if given, from which images may be fetched."""
        return frozenset(host.lower() for host in _listed(self.image_hosts) if host)

    @property
    def cache_path(self) -> Path | None:
        """The folder for packed weights; None to do without."""
        if self.cache_dir == "none":
            return None
        return Path(self.cache_dir) if self.cache_dir else platformdirs.user_cache_path("genai-server")

    @property
    def prefix_cache_path(self) -> Path:
        """The folder of the prefix cache on disk."""
        if self.prefix_cache_dir:
            return Path(self.prefix_cache_dir).expanduser()
        return (self.cache_path or platformdirs.user_cache_path("genai-server")) / "prefixes"

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


for _field in Settings.model_fields.values():
    _field.description = " ".join((_field.description or "").split())


def _listed(text: str) -> list[str]:
    """The entries of a comma-separated list."""
    return [entry.strip() for entry in text.split(",")]


def _pairs(text: str) -> list[tuple[str, str]]:
    """The entries of a list such as `a=x,b=y`; the value of an entry without `=` is ""."""
    return [(name, value) for name, _, value in (entry.partition("=") for entry in _listed(text))] if text else []


def _adapters(text: str, first: str) -> list[tuple[str, str, str]]:
    """Model, name and file of each adapter; those that name no model belong to the first."""
    entries = [(*id.rpartition(":"), path) for id, path in _pairs(text)]
    return [(model or first, name, path) for model, _, name, path in entries]


def _of_models(text: str, first: str) -> list[tuple[str, str]]:
    """Model and value of each entry of a list such as `x,big=y`; those that name no model belong to the first."""
    entries = [entry.partition("=") for entry in _listed(text)] if text else []
    return [(model or first, value) if equals else (first, model) for model, equals, value in entries]


def _one_for_each_model(text: str, models: Sequence[str], example: str, doubled: str) -> str:
    """The text, if each entry has a value, and is for another one of these models. Raises ValueError."""
    entries = _of_models(text, models[0])
    for entry, (model, value) in zip(_listed(text), entries, strict=False):
        if model not in models:
            raise ValueError(f"{quoted(entry)} is for a model that is not served")
        if not value:
            raise ValueError(f"{quoted(entry)} is not {example}")
    _require_distinct([model for model, _ in entries], doubled)
    return text


def _named(info: ValidationInfo) -> list[str]:
    """The names of the served models, from the settings that were validated before."""
    return [name for name, _ in _pairs(info.data.get("models", ""))] or [str(info.data.get("model_name"))]


def _require_distinct(names: Sequence[object], message: str) -> None:
    if len(set(names)) < len(names):
        raise ValueError(message)


def name_of_directory(path: str) -> str:
    """The name of a model in this directory: the directory's own, without characters that names must not have."""
    return _UNNAMEABLE.sub("", os.path.basename(os.path.abspath(path)))[:_MAX_NAME] or "model"


def device_list(value: str) -> list[str]:
    """The devices in a text such as `cpu,cuda:1`. Raises ValueError."""
    names = _listed(value)
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise ValueError(f"unknown device {quoted(name)}{meant_devices(name)}")
    _require_distinct(names, "a device is named twice")
    return names


# All names by which a field can be given.
NAMES = (*Settings.model_fields, *FORMER_NAMES.values())


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
