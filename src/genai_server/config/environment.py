"""What this process leaves in its environment for processes that it starts, and for libraries that it imports."""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from genai_server.config.settings import Settings, environment_variable

# Set by `genai-server serve` for its API processes: the folder of the engines that are running already.
ATTACH_VARIABLE = "GENAI_ENGINES_DIR"
# Read by prometheus-client, too, when it is imported.
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
# What begins so is for API processes and commands alone: our settings with the API keys, headers of OpenTelemetry's
# exporter, the hub's tokens, and the folder of shared metrics.
_WITHHELD = ("GENAI_", "OTEL_", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", SHARED_METRICS)
# Where Python, its packages and their libraries lie, and what a system wants of every process.
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


def export_settings(settings: Settings, environ: MutableMapping[str, str] | None = None) -> None:
    """Write the settings into the environment, where the API processes that are started next find them."""
    environ = os.environ if environ is None else environ
    for name in Settings.model_fields:
        value = getattr(settings, name)
        environ[environment_variable(name)] = "" if value is None else str(value)


def engines_to_attach(environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder of engines that are running already, if this process was started beside some."""
    folder = (os.environ if environ is None else environ).get(ATTACH_VARIABLE)
    return Path(folder) if folder else None


def export_engines(folder: Path, environ: MutableMapping[str, str] | None = None) -> None:
    """Tell the API processes that are started next where the engines are."""
    (os.environ if environ is None else environ)[ATTACH_VARIABLE] = str(folder)


def export_shared_metrics(folder: Path, environ: MutableMapping[str, str] | None = None) -> None:
    """Have the API processes that are started next count in files there, which each of them can add up."""
    (os.environ if environ is None else environ)[SHARED_METRICS] = str(folder)


def shared_metrics(environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder in which this process counts, None if it counts in its memory."""
    folder = (os.environ if environ is None else environ).get(SHARED_METRICS)
    return Path(folder) if folder else None


def engine_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a process that runs a model's library: this one's, without API keys and tokens.

    Our settings are not in it either: such a process reads its orders from its command line or standard input.
    """
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if not name.startswith(_WITHHELD)}


def allow_telemetry(environ: MutableMapping[str, str] | None = None) -> None:
    """Have ONNX Runtime and onnxruntime-genai report how they are used; only before they are imported."""
    (os.environ if environ is None else environ)["ORT_DISABLE_TELEMETRY"] = "0"


def builder_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for onnxruntime-genai's model builder: as an engine's, and nothing fetched behind our back."""
    return engine_environment(environ) | {"HF_HUB_OFFLINE": "1"}


def checker_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a process that compiles what strangers send: what Python needs, and no key or setting."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if name.upper().startswith(_OF_PYTHON)}


def limit_tokenizer_threads(environ: MutableMapping[str, str] | None = None) -> None:
    """Keep the tokenizers library to the thread that calls it: one text is no work for several."""
    (os.environ if environ is None else environ).setdefault("TOKENIZERS_PARALLELISM", "false")
