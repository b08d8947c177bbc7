"""Environment variables that this process sets, for processes that it starts and libraries that it imports."""

import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

from genai_server.config.setting_form import environment_variables
from genai_server.config.settings import Settings

# prometheus-client also reads it when it is imported.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
# Prefixes of variables for API processes and commands only. They hold API keys, headers of OpenTelemetry's exporter,
# the hub's tokens, and the folder of shared metrics.
_WITHHELD = ("GENAI_", "OTEL_", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", SHARED_METRICS)
# Variables that locate Python, its packages and their libraries, and those that the system needs in every process.
_OF_PYTHON = (
    "PATH",
    "PYTHON",
    "LD_",
    "DYLD_",
    "HOME",
    "USERPROFILE",
    "APPDATA",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "LANG",
    "LC_",
)


# The same for a program of the operator's that the server starts, such as a tool server.
_OF_PROGRAMS = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP", "LANG", "LC_"),
    *("USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC"),
)


def export_settings(settings: Settings, environ: MutableMapping[str, str] = os.environ) -> None:
    """Write the settings into the environment for the API processes that are started next."""
    for name in Settings.model_fields:
        value = getattr(settings, name)
        for variable in environment_variables(name):
            environ[variable] = "" if value is None else str(value)


def export_metrics(folder: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Have this process, and those that are started next, count in files of a server's folder, which is made.

    Has an effect only before prometheus-client is imported.
    """
    metrics = folder / "metrics"
    metrics.mkdir(mode=0o700, exist_ok=True)
    environ[SHARED_METRICS] = str(metrics)


def shared_metrics(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder in which this process counts; None if it counts in memory."""
    folder = environ.get(SHARED_METRICS)
    return Path(folder) if folder else None


def supervisor_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for the supervisor: this process's, from which the supervisor makes that of its engines."""
    return dict(environ)


def engine_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a process that runs a model's library: this process's, without API keys and tokens.

    It lacks this server's settings, too: such a process gets them on its command line or standard input.
    """
    return {name: value for name, value in environ.items() if not name.startswith(_WITHHELD)}


def launched_environment(
    own: Mapping[str, str], removed: Iterable[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of a user's program that a command starts: the command's, with other values, and some removed."""
    left_out = frozenset(removed)
    return {name: value for name, value in environ.items() if name not in left_out} | dict(own)


def allow_telemetry(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let ONNX Runtime and onnxruntime-genai report how they are used. Has an effect only before they are imported."""
    environ["ORT_DISABLE_TELEMETRY"] = "0"


def builder_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for onnxruntime-genai's model builder: an engine's, with downloads disabled."""
    return engine_environment(environ) | {"HF_HUB_OFFLINE": "1"}


def untrusted_work_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a process that works on untrusted input: what Python needs, no keys or settings."""
    return {name: value for name, value in environ.items() if name.upper().startswith(_OF_PYTHON)}


def program_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a program of the operator's: what every program needs, no keys or settings."""
    return {name: value for name, value in environ.items() if name.upper().startswith(_OF_PROGRAMS)}


def limit_tokenizer_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limit the tokenizers library to the calling thread, because it cannot split a single text."""
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def keep_ray_local(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make a Ray cluster on this machine listen on loopback, require a token, and send no statistics.

    Replicas are called by gRPC, which takes less processor time for each token than Ray's objects. Serve's controller
    polls less often while it is idle, and Ray collects no metrics of its own.
    Has an effect only before Ray is imported. Ray reads the first variable on every system.
    """
    environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    environ.setdefault("RAY_AUTH_MODE", "token")
    environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
    environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5")
    environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    environ.setdefault("RAY_enable_metrics_collection", "0")
