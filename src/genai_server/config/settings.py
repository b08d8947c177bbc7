"""The settings: their names, defaults, limits and meaning.

A field's docstring is its description in `--help` and docs/settings.md. Its name becomes its environment variable and
its command-line option: `max_length` is GENAI_MAX_LENGTH and `--max-length`.
"""

import ipaddress
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
# Valid names of models.
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
# Valid names of adapters, which follow the model's name and a colon in requests.
ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# Valid aliases: also names that other servers use, such as qwen3:4b, and `*` for all other names.
_ALIAS = r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}|\*"

# Fields whose environment variables other servers read, too; those of all others begin with GENAI_.
_UNPREFIXED = ("host", "port", "workers", "reload")

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
    """Directory of the onnxruntime-genai model. If the default does not exist, an installed copy serves its bundled
    demo model.
    """

    model_name: str = Field("onnx-genai", pattern=f"^{MODEL_NAME}$")
    """The model's id in requests and answers."""

    models: str = ""
    """Several models instead of one: `small=./models/demo,big=/srv/big`; requests choose by `model`; the first is the
    default.
    """

    adapters: str = ""
    """LoRA adapters, which requests choose by `MODEL:NAME`: `law=./law.onnx_adapter` for the first model,
    `big:law=/srv/law.onnx_adapter` for another one.
    """

    model_aliases: str = ""
    """Additional model names for requests, such as `gpt-4o=onnx-genai,gpt-4o-mini=small`; `*=onnx-genai` maps all other
    names to a model.
    """

    max_models: NotNegative | Literal["auto"] = AUTO
    """Maximum number of models loaded at once; `auto` loads as many as the memory holds, and refuses one that it cannot
    hold; 0 sets no limit. A request for another model replaces the one that has been idle the longest.
    """

    idle_unload: int = Field(0, ge=0, le=31_536_000)
    """Seconds without a request after which a model is unloaded; the next request loads it again. 0 disables this. An
    operator's `keep_alive` in Ollama's API overrides it.
    """

    device: str = "cpu"
    """`cpu`, `cuda`, `directml` or another execution provider, or a list such as `cpu,cuda:1`; one engine process for
    each.
    """

    max_length: Positive | Literal["auto"] = AUTO
    """Maximum number of tokens of prompt and answer together; never more than the model's context. `auto` allows the
    model's context, or what of it the memory for keys and values holds (`GENAI_KV_CACHE_BYTES`).
    """

    max_batch_size: int = Field(16, ge=1, le=1024)
    """Maximum number of requests that a device runs at once; others wait. On Linux CPUs they also wait until they are
    expected to fit into `GENAI_KV_CACHE_BYTES`.
    """

    scheduler: str = Field("auto", pattern="^(auto|batched|generator|library)$")
    """`batched`, `generator` (one request after another, token by token), `library` (onnxruntime-genai's own batch), or
    `auto`: `library` for models with paged attention, `batched` for other models on CPUs if possible, else `generator`.
    """

    kv_cache_bytes: int = Field(0, ge=0)
    """Maximum memory for the keys and values of each engine, in bytes; 0 divides half of the free memory among the
    models. On Linux CPUs requests take it as their tokens come, and the last ones are paused when it gets short.
    """

    kv_cache_type: str = Field("fp32", pattern="^(auto|fp32|fp16)$")
    """Numbers of a batch's keys and values on CPUs: `fp32`, `fp16` (half the memory, slower decoding), or `auto`:
    `fp16` if the memory does not hold the model's context in 32 bits, or `GENAI_MAX_BATCH_SIZE` requests of a
    `GENAI_MAX_LENGTH` that is set. A model built with 16 bits keeps them.
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
    """Maximum number of requests waiting for a device, in addition to `GENAI_MAX_BATCH_SIZE` running ones; more get a
    503. Requests of batches count separately.
    """

    max_queue_tokens: int = Field(262_144, ge=0)
    """Maximum number of tokens in the prompts of all waiting requests of a device; 0 sets no limit. Requests of batches
    count separately.
    """

    request_timeout: int = Field(600, ge=1, le=86400)
    """Seconds after which an answer ends with its text so far; also the maximum timeout of a request."""

    grammar_timeout: int = Field(5, ge=1, le=600)
    """Seconds for checking one grammar, tool or JSON schema; a longer check results in a 400."""

    prefill_chunk: int = Field(128, ge=2)
    """Maximum number of prompt tokens read in one step while other requests are decoded; fewer if those would be
    delayed.
    """

    prefill_weights: str = Field("auto", pattern="^(auto|int4|int8)$")
    """Weights for CPU steps of many tokens: `int4` uses the model's own; `int8` uses 8-bit weights made from them where
    that is faster; `auto` does so if it is 1.2 times as fast and they fit into a quarter of the free memory.
    """

    itl_target: float = Field(0.0, ge=0, le=3600)
    """Maximum seconds until a running answer's next token while prompts are read; 0 allows four times the usual time,
    and more the more prompts wait.
    """

    speculation: str = Field("auto", pattern="^(auto|off)$")
    """`auto` drafts the next tokens of answers in the batch on the CPU, and checks them in one step where that is
    faster; `off` disables drafts.
    """

    draft_model: str = ""
    """Directory of a much smaller model with the same tokenizer, which drafts the next tokens of the first model's
    answers where that is faster; `big=./small` sets that of another model, several are separated by commas. It is
    loaded in the same engines, next to the model. Empty drafts without one.
    """

    threads: int = Field(0, ge=0, le=1024)
    """Threads of a CPU operator; 0 uses as many as the process has physical cores."""

    cache_dir: str = ""
    """Folder for packed weights, which all engines share; empty uses the user's cache, `none` disables it."""

    prefix_cache_bytes: str = Field("0", pattern="^(auto|[0-9]{1,18})$")
    """Maximum size of the files in `GENAI_PREFIX_CACHE_DIR`, in bytes: keys and values of prompts, which engines load
    after a restart instead of reading these again. `auto` is a tenth of the disk's free space, 0 keeps none.
    """

    prefix_cache_dir: str = ""
    """Folder for the prefix cache on disk, which all engines of the host share; empty uses `prefixes` in
    `GENAI_CACHE_DIR`.
    """

    prefix_cache_type: str = Field("same", pattern="^(same|fp16)$")
    """Numbers in the prefix cache on disk: the `same` as in memory, or `fp16`, which halves the files but rounds; exact
    requests do not use them.
    """

    models_dir: str = ""
    """Folder into which `pull` and `export` put models; empty uses the user's data folder."""

    strict: bool = False
    """Also refuse fields without effect in /v1/messages, /v1/responses, /v1/chat/completions and Ollama's API, and
    schemas that can only be followed in part; otherwise the header `x-genai-ignored` names them.
    """

    cap_max_tokens: bool = True
    """Reduce a `max_tokens` of /v1/messages, or a `num_predict` of Ollama's API, above the context (GENAI_MAX_LENGTH)
    to what fits; if disabled, and with GENAI_STRICT, such a value is a 400.
    """

    allow_special_tokens: bool = False
    """Let messages and tools contain the tokens that structure a prompt, such as the end of a turn."""

    max_body_bytes: Positive = 1024 * 1024
    """Maximum size of a request body, in bytes."""

    max_image_body_bytes: int = Field(96 * 1024 * 1024, ge=0)
    """Maximum size of a request body, in bytes, while a model that takes images is served, if that is more than
    `GENAI_MAX_BODY_BYTES`. Images in base64 have a third more bytes than their files: the default has room for
    `GENAI_MAX_IMAGES` photos of 4.5 MiB, or for three images of `GENAI_MAX_IMAGE_BYTES`.
    """

    max_bodies_bytes: Positive = 256 * 1024 * 1024
    """Maximum bytes of all bodies together in each API process, of unfinished requests and of incomplete WebSocket
    messages; more get a 503.
    """

    image_hosts: str = ""
    """Comma-separated hosts from which the server may fetch images that requests name by URL, such as
    `images.example,cdn.example:8443`; their addresses must be public ones. Empty allows none: images are sent as data
    URLs.
    """

    max_images: Positive = 16
    """Maximum number of images in a request."""

    max_image_bytes: Positive = 20 * 1024 * 1024
    """Maximum size of an image file, in bytes."""

    max_image_pixels: Positive = Field(50_000_000, le=500_000_000)
    """Maximum number of pixels of an image, width times height. Processes that read images may take 1 GiB of memory,
    and 40 bytes for each of these pixels.
    """

    max_image_tokens: Positive = 16_384
    """Maximum number of prompt tokens of all images of a request; the model decides how many an image takes."""

    image_timeout: Positive = Field(10, le=600)
    """Seconds for fetching one image, and for decoding and preparing it; a longer time results in a 400."""

    encoder_cache_bytes: int = Field(256 * 1024 * 1024, ge=0)
    """Maximum bytes of what is kept for later requests: images that are prepared, in files of each API process, and
    images and windows of recordings that are encoded, in the memory of each engine. Those of present requests are
    exempt.
    """

    max_audio_body_bytes: Positive = 200 * 1024 * 1024
    """Maximum size of the body of a request with a recording, in bytes. Such a body is written to a file while it
    arrives.
    """

    max_audio_bodies_bytes: Positive = 2 * 1024 * 1024 * 1024
    """Maximum bytes of all these bodies together in each API process; more get a 503."""

    max_audio_seconds: Positive = Field(7200, le=86_400)
    """Maximum length of a recording, in seconds. While a recording is transcribed, its samples take 32 kB of disk space
    for each second.
    """

    audio_timeout: Positive = Field(10, le=600)
    """Seconds for finding the next speech in a recording and preparing it. Decoding a recording may take one more for
    each 15 kB of its file, up to one for each 20 s of GENAI_MAX_AUDIO_SECONDS. A longer time results in a 400.
    """

    response_store_size: int = Field(256, ge=0, le=1_000_000)
    """Maximum number of stored responses of /v1/responses, and of conversations, by each API process or in
    GENAI_RESPONSE_STORE_FILE; the least recently used are removed. 0 stores none.
    """

    response_store_bytes: Positive = 64 * 1024 * 1024
    """Maximum bytes of these responses with their conversations, counted as JSON."""

    response_store_file: str = ""
    """File for responses and conversations, which then survive a restart and are shared by all API processes, within
    the same limits; empty stores them in memory.
    """

    files_dir: str = ""
    """Folder for the files of /v1/files and the state of /v1/batches, which survive a restart and are shared by all API
    processes; it is created if it is missing. Empty disables both.
    """

    max_file_bytes: Positive = 512 * 1024 * 1024
    """Maximum size of the body of an upload to /v1/files, in bytes. It is written to a file while it arrives."""

    files_bytes_per_key: Positive = 4 * 1024 * 1024 * 1024
    """Maximum bytes of an API key's files, including the results of its batches. Beyond it uploads are refused, and
    batches wait. Each file counts as at least 4096.
    """

    files_bytes: Positive = 16 * 1024 * 1024 * 1024
    """Maximum bytes of all files in GENAI_FILES_DIR; enforced in the same way."""

    max_batch_requests: Positive = 100_000
    """Maximum number of requests in a batch."""

    drain_timeout: int = Field(30, ge=0, le=86400)
    """Seconds for which running answers may continue after the server receives a signal to stop."""

    step_timeout: int = Field(60, ge=0, le=86400)
    """Seconds, plus 0.1 per token of the step, after which a step counts as hung and the engine is killed and
    restarted; 0 sets no limit.
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
    """Maximum number of concurrent requests of a key, and of concurrent reads of what it has stored, in each API
    process; more get a 429. 0 sets no limit.
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
    """Seconds within which the body of a request, or a message on a WebSocket, must arrive; of a body with a recording
    each MiB.
    """

    stall_timeout: Positive = Field(30, le=86400)
    """Seconds without a byte read by the client after which its request is cancelled."""

    profile_dir: Path = Path("./profiles")
    """Folder for the per-token profiles."""

    profile_max_files: Positive = 1000
    """Maximum number of files in that folder; the oldest sessions are removed, and profiling stops when only running
    ones are left.
    """

    profile_max_bytes: Positive = 256 * 1024 * 1024
    """Maximum bytes in that folder; enforced in the same way."""

    profile_max_age: Positive = 30 * 24 * 3600
    """Seconds after which a profile session is removed, at startup and when profiling is switched on."""

    profile_max_rows: Positive = 1
    """Maximum number of requests of a batch that are profiled at a time when a device is profiled."""

    config: str = ""
    """Configuration file with these settings and the session options of each device; empty uses `genai-server.toml` in
    the working directory, if it exists.
    """

    options: str = Field("", repr=False)
    """Session and provider options as TOML, which override those of the file."""

    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")
    """`debug`, `info`, `warning` or `error`."""

    log_format: str = Field("text", pattern="^(text|json)$")
    """`text`, or `json` for one object per line."""

    metrics: str = Field("key", pattern="^(key|open|off)$")
    """Access to /metrics: `key` requires an API key if the API does, `open` requires none, `off` disables it."""

    metrics_prefix: str = Field("genai:", pattern="^[A-Za-z_][A-Za-z0-9_]{0,31}:$")
    """Prefix of all names in /metrics; routers and dashboards for vLLM expect `vllm:`."""

    kv_events: str = Field("", pattern=r"^(tcp://[^\s/]+:[0-9]{1,5})?$")
    """ZeroMQ address, such as `tcp://*:5557`, at which engines publish what their prefix caches store and remove,
    including the tokens of prompts; each further engine uses the next port. Needs the extra `kv-events`; empty disables
    it.
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
                raise ValueError(f"{quoted(alias)} is not an alias with its model, such as gpt-4o=onnx-genai")
            if model not in models:
                raise ValueError(f"{quoted(alias)} is an alias of {quoted(model)}, a model that is not served")
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
            ipaddress.ip_network(address, strict=False)
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
        """The directory of a model's draft model; "" for none."""
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


def device_list(value: str) -> list[str]:
    """The devices in a text such as `cpu,cuda:1`. Raises ValueError."""
    names = _listed(value)
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise ValueError(f"unknown device {quoted(name)}{meant_devices(name)}")
    _require_distinct(names, "a device is named twice")
    return names


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
