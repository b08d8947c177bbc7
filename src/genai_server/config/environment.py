"""Environment variables of processes: which ones a process that this process starts gets, for each kind of process
(engine, tool server, model builder, …), and variables that configure libraries and must be set before these are
imported.
"""

import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

from genai_server.config.setting_form import environment_variables
from genai_server.config.settings import Settings

# prometheus-client also reads it when it is imported.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
# Prefixes of variables for API processes and commands only. They hold API keys, headers of OpenTelemetry's exporter,
# the hub's tokens, and the folder of shared metrics.
_SECRET_PREFIXES = ("GENAI_", "OTEL_", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", SHARED_METRICS)
# Variables that locate Python, its packages and their libraries, and those that the system needs in every process.
_PYTHON_VARIABLES = (
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


# Variables for a program that the operator lets the server start, such as a tool server.
_PROGRAM_VARIABLES = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP", "LANG", "LC_"),
    *("USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC"),
)


def export_settings(settings: Settings, environ: MutableMapping[str, str] = os.environ) -> None:
    """Write all settings into the environment variables `environ`, so that API processes that this process starts
    afterwards have the same settings.
    """
    for name in Settings.model_fields:
        value = getattr(settings, name)
        for variable in environment_variables(name):
            environ[variable] = "" if value is None else str(value)


def export_metrics(folder: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and the processes that it starts afterwards keep their Prometheus metrics in files, so that each
    process can report the sums over all processes.

    Creates the folder `metrics` in `folder`. Has an effect only before prometheus-client is imported.
    """
    metrics = folder / "metrics"
    metrics.mkdir(mode=0o700, exist_ok=True)
    environ[SHARED_METRICS] = str(metrics)


def shared_metrics(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder with the files of metrics that the server's processes share; None if this process keeps its
    metrics in memory.
    """
    folder = environ.get(SHARED_METRICS)
    return Path(folder) if folder else None


def supervisor_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables for the supervisor, the process that starts engines: all of this process's
    variables, because the supervisor derives those of the engines from them.
    """
    return dict(environ)


def engine_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables for a process that runs a model: those of this process, except API keys, tokens
    and settings.

    Such a process gets its settings on the command line or on standard input.
    """
    return {name: value for name, value in environ.items() if not name.startswith(_SECRET_PREFIXES)}


def launched_environment(
    variables: Mapping[str, str], removed: Iterable[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment variables for a program that a command starts for the user, such as a coding agent: those
    of this process, without the names in `removed` and with the values in `variables`.
    """
    left_out = frozenset(removed)
    return {name: value for name, value in environ.items() if name not in left_out} | dict(variables)


def allow_telemetry(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let ONNX Runtime and onnxruntime-genai send usage data to Microsoft. Has an effect only before they are
    imported.
    """
    environ["ORT_DISABLE_TELEMETRY"] = "0"


def builder_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables for onnxruntime-genai's model builder: those of an engine, and one that disables
    downloads from the Hugging Face Hub.
    """
    return engine_environment(environ) | {"HF_HUB_OFFLINE": "1"}


def untrusted_work_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables for a process that handles untrusted input, such as images: only those that
    Python needs, without keys and settings.
    """
    return {name: value for name, value in environ.items() if name.upper().startswith(_PYTHON_VARIABLES)}


def program_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables for a program that the operator lets the server start, such as a tool server:
    only those that every program needs, such as PATH and HOME, without keys and settings.
    """
    return {name: value for name, value in environ.items() if name.upper().startswith(_PROGRAM_VARIABLES)}


def limit_tokenizer_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let the library tokenizers work in the calling thread only, since its own threads do not speed up a single text.
    A value of the variable TOKENIZERS_PARALLELISM that is already set is kept.
    """
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def keep_ray_local(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment variables that configure Ray, the library for clusters. Ray must not be imported yet. A
    cluster on this machine then listens on loopback, requires a token and sends no statistics.

    Replicas are called by gRPC, which takes less processor time for each token than Ray's objects. Ray Serve's
    controller polls less often while it is idle, and Ray collects no metrics of its own.
    """
    environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    environ.setdefault("RAY_AUTH_MODE", "token")
    environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
    environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5")
    environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    environ.setdefault("RAY_enable_metrics_collection", "0")
