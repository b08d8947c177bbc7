"""The settings of the HTTP server itself (`ServerSettings`): its address and processes, the clients that it accepts,
and what it stores, logs and reports.
"""

import ipaddress
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from genai_server.config.setting_form import Positive, SettingsForm, listed
from genai_server.errors import quoted
from genai_server.system.addresses import is_loopback

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?")


class ServerSettings(SettingsForm):
    """The settings that only the HTTP server needs and no engine (process that runs a model), as a base class of
    `Settings`, the class with all settings. Times are in seconds, sizes in bytes.
    """

    host: str = Field("127.0.0.1", min_length=1)
    """Address to listen on."""

    port: int = Field(8002, ge=0, le=65535)
    """Port to listen on; 0 chooses a free one."""

    workers: int = Field(1, ge=1, le=64)
    """Number of API processes; all share the same engines."""

    reload: bool = False
    """Reload the API, not the engines, when a source file changes."""

    response_store_size: int = Field(256, ge=0, le=1_000_000)
    """Maximum number of stored responses and conversations; the least recently used are removed. 0 stores none."""

    response_store_bytes: Positive = 64 * 1024 * 1024
    """Maximum bytes of stored responses with their conversations, counted as JSON."""

    response_store_file: str = ""
    """File for responses and conversations, which then survive a restart; with an empty value they are in a temporary
    file. It cannot be combined with `GENAI_FILES_DIR`, whose folder contains the file instead.
    """

    files_dir: str = ""
    """Folder for the files of /v1/files and for `store.sqlite`, which contains the state of files and batches, and
    stored responses and conversations; all survive a restart. The folder is created if it is missing. An empty value
    disables files and batches.
    """

    max_file_bytes: Positive = 512 * 1024 * 1024
    """Maximum size of an upload to /v1/files, in bytes."""

    files_bytes_per_key: Positive = 4 * 1024 * 1024 * 1024
    """Maximum bytes of an API key's files, including results of batches; beyond it, uploads are refused, and batches
    wait. Each file counts as at least 4096 bytes.
    """

    files_bytes: Positive = 16 * 1024 * 1024 * 1024
    """Maximum bytes of all files in GENAI_FILES_DIR; enforced in the same way."""

    max_batch_requests: Positive = 100_000
    """Maximum number of requests in a batch."""

    pid_file: str = ""
    """File for the process id of the server, which is removed when it ends."""

    drain_timeout: int = Field(30, ge=0, le=86400)
    """Seconds for which running answers may continue after the server receives a signal to stop."""

    api_keys: str | None = Field(None, repr=False)
    """Comma-separated API keys, each `NAME:KEY` or `KEY`; without any, clients need no key."""

    api_key_file: str = ""
    """File with more keys, each a line that `genai-server key` prints; read again on SIGHUP."""

    admin_api_key: str | None = Field(None, repr=False)
    """Key for the admin endpoints; without it, and without API keys, they serve only this machine."""

    insecure: bool = False
    """Serve every client that can reach the server, without API keys."""

    max_concurrent_per_key: int = Field(0, ge=0)
    """Maximum number of concurrent answers of a key (a request with `n: 4` has four), and of concurrent reads of its
    stored responses, in each API process; requests beyond it get a 429. 0 sets no limit.
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

    max_body_bytes: Positive = 1024 * 1024
    """Maximum size of a request body, in bytes."""

    max_bodies_bytes: Positive = 256 * 1024 * 1024
    """Maximum bytes of all request bodies and WebSocket messages in each API process, until they are parsed and their
    images are read; requests beyond it get a 503. API keys that send bodies at the same time share it equally. The
    first MiB of each body counts separately, up to the same number, so that large bodies do not displace small ones.
    """

    max_header_bytes: int = Field(65_536, ge=1024, le=16 * 1024 * 1024)
    """Maximum size of a request's head (its first line and its headers), in bytes."""

    idle_timeout: Positive = Field(30, le=86400)
    """Seconds after which a connection without a complete request head is closed; a TLS handshake counts."""

    body_timeout: Positive = Field(60, le=86400)
    """Seconds within which a request's body or a WebSocket message must arrive; for a recording or a file, seconds for
    each MiB.
    """

    upload_timeout: Positive = Field(3600, le=86400)
    """Seconds within which a recording or a file must have arrived."""

    stall_timeout: Positive = Field(30, le=86400)
    """Seconds in which a client reads nothing of its answer after which its request is cancelled."""

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

    usage_file: str = ""
    """File for the requests and tokens of each API key and day, which all API processes share (`genai-server usage`);
    with an empty value, the counts are lost when the server stops.
    """

    metrics_keys: bool = False
    """Add the label `key_name`, the name of the API key, to the counters of requests and tokens in /metrics, where all
    readers of the metrics see it.
    """

    metrics_prefix: str = Field("genai:", pattern="^[A-Za-z_][A-Za-z0-9_]{0,31}:$")
    """Prefix of all names in /metrics; routers and dashboards for vLLM expect `vllm:`."""

    kv_events: str = Field("", pattern=r"^(tcp://[^\s/]+:[0-9]{1,5})?$")
    """ZeroMQ address, such as `tcp://*:5557`, at which engines publish what their prefix caches contain, including
    tokens of prompts; each further engine uses the next port. Needs the extra `kv-events`.
    """

    kv_events_topic: str = Field("", max_length=512)
    """Topic of these events, such as `kv@10.0.0.7:8002@{model}` for llm-d; `{model}` is the model's name."""

    ui: bool = True
    """Serve the web page at `/`; `false` disables it."""

    telemetry: bool = False
    """Let ONNX Runtime and onnxruntime-genai send data about how the engines use them to Microsoft."""

    otlp_endpoint: str = Field("", pattern="^(https?://.+)?$")
    """HTTP endpoint for traces, such as `http://localhost:4318/v1/traces`; needs the extra `otel`. Empty disables them.
    """

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        for origin in filter(None, listed(value)):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{quoted(origin)} is not an origin, such as https://app.example or http://localhost:3000"
                )
        return value

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for address in filter(None, listed(value)):
            try:
                ipaddress.ip_network(address, strict=False)
            except ValueError:
                raise ValueError(f"{quoted(address)} is not an address or a network, such as 10.0.0.0/8") from None
        return value

    @property
    def origins(self) -> list[str]:
        """The origins, such as `https://app.example`, of web pages whose scripts may use the API (CORS)."""
        return [origin for origin in listed(self.cors_origins) if origin]

    @property
    def on_loopback(self) -> bool:
        """Whether the server listens on a loopback address, so that only programs on this machine can connect."""
        return is_loopback(self.host)
