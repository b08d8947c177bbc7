"""The environments of processes that this process starts, and the environment variables that libraries read when they
are imported.
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
    """Write all settings into environment variables, so that API processes that are started later have the same
    settings.
    """
    for name in Settings.model_fields:
        value = getattr(settings, name)
        for variable in environment_variables(name):
            environ[variable] = "" if value is None else str(value)


def export_metrics(folder: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and its later children keep their metrics in files, so that each process can report the sums
    over all processes.

    Creates the folder `metrics` in `folder`. Has an effect only before prometheus-client is imported.
    """
    metrics = folder / "metrics"
    metrics.mkdir(mode=0o700, exist_ok=True)
    environ[SHARED_METRICS] = str(metrics)


def shared_metrics(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder with the metric files that the server's processes share; None if this process keeps its metrics in
    memory.
    """
    folder = environ.get(SHARED_METRICS)
    return Path(folder) if folder else None


def supervisor_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables for the supervisor: all of this process's, because the supervisor derives the engines'
    from them.
    """
    return dict(environ)


def engine_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables for a process that runs a model: this process's without API keys, tokens and settings.

    Such a process gets its settings on the command line or on standard input.
    """
    return {name: value for name, value in environ.items() if not name.startswith(_SECRET_PREFIXES)}


def launched_environment(
    variables: Mapping[str, str], removed: Iterable[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment variables for a program that a command starts for the user: this process's without `removed`, and
    with the values in `variables`.
    """
    left_out = frozenset(removed)
    return {name: value for name, value in environ.items() if name not in left_out} | dict(variables)


def allow_telemetry(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let ONNX Runtime and onnxruntime-genai send usage data to Microsoft. Has an effect only before they are
    imported.
    """
    environ["ORT_DISABLE_TELEMETRY"] = "0"


def builder_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables for onnxruntime-genai's model builder: those of an engine, with downloads from the
    Hugging Face Hub disabled.
    """
    return engine_environment(environ) | {"HF_HUB_OFFLINE": "1"}


def untrusted_work_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables for a process that handles untrusted input: only those that Python needs, no keys or
    settings.
    """
    return {name: value for name, value in environ.items() if name.upper().startswith(_PYTHON_VARIABLES)}


def program_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables for a program that the operator lets the server start, such as a tool server: those
    that every program needs, no keys or settings.
    """
    return {name: value for name, value in environ.items() if name.upper().startswith(_PROGRAM_VARIABLES)}


def limit_tokenizer_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Keep the tokenizers library in the calling thread, since its threads do not speed up a single text."""
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def keep_ray_local(environ: MutableMapping[str, str] = os.environ) -> None:
    """Configure Ray, which must not be imported yet: a cluster on this machine listens on loopback, requires a token
    and sends no statistics.

    Replicas are called by gRPC, which takes less processor time for each token than Ray's objects. Ray Serve's
    controller polls less often while it is idle, and Ray collects no metrics of its own.
    """
    environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    environ.setdefault("RAY_AUTH_MODE", "token")
    environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
    environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5")
    environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    environ.setdefault("RAY_enable_metrics_collection", "0")
