"""What `genai-server doctor` looks at: each check gives findings, and none of them raises."""

import importlib.metadata
import json
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from genai_server import __version__
from genai_server.cli.preflight import check_models
from genai_server.config import Settings, device_options
from genai_server.engine.cores import cpu_quota, usable_cores
from genai_server.engine.decoder_graph import DoesNotFit, read_decoder_graph
from genai_server.engine.memory import free_memory
from genai_server.engine.model_files import check_model_directory, read_config, weight_bytes
from genai_server.engines.supervisor import Supervisor
from genai_server.errors import ConfigurationError, GenaiServerError, ModelDirectoryError
from genai_server.options.session import THREADS

OK, WARN, FAIL = "ok", "warn", "fail"
_LIBRARIES = ("onnxruntime-genai", "onnxruntime-genai-cuda", "onnxruntime-genai-directml")
_TESTED = "0.18"
# Of the weights on disk: what packed weights take there, and a loaded model in memory beside them.
_PACKED, _LOADED = 2.2, 1.5
_MIB = 1024 * 1024
_TRIAL_TIMEOUT = 60.0


@dataclass(frozen=True)
class Finding:
    """`remedy` says what to do about it, where something can be."""

    state: str
    subject: str
    found: str
    remedy: str = ""


def versions() -> Iterator[Finding]:
    """Python, and the libraries that run models."""
    yield Finding(OK, "python", f"{platform.python_version()} on {platform.platform()}, genai-server {__version__}")
    installed = {}
    for name in _LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    shown = ", ".join(f"{name} {version}" for name, version in installed.items())
    if not installed:
        remedy = "pip install genai-server[cpu], or [cuda] or [directml]; exactly one of them"
        yield Finding(FAIL, "library", "onnxruntime-genai is not installed", remedy)
    elif len(installed) > 1:
        remedy = f"pip uninstall {' '.join(installed)}, and install one of them again: all bring the same module"
        yield Finding(FAIL, "library", shown, remedy)
    elif not next(iter(installed.values())).startswith(f"{_TESTED}."):
        yield Finding(WARN, "library", shown, f"this version was not tested: {_TESTED} was")
    else:
        yield Finding(OK, "library", f"{shown}, onnxruntime {importlib.metadata.version('onnxruntime')}")


def providers() -> Iterator[Finding]:
    """The execution providers that onnxruntime, under the batch, can load."""
    command = [sys.executable, "-m", "genai_server.engine.provider_trial"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_TIMEOUT, check=False)
        tried: dict[str, str | None] | None = json.loads(result.stdout or "null")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        yield Finding(FAIL, "providers", f"cannot be tried: {error}", "install genai-server again")
        return
    if tried is None:
        reason = (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
        yield Finding(FAIL, "providers", f"onnxruntime does not load: {reason}", "install genai-server again")
        return
    yield Finding(OK, "providers", ", ".join(name for name, why in tried.items() if why is None) or "none")
    for name, why in tried.items():
        if why is not None:
            yield Finding(WARN, f"provider {name}", why, f"install the libraries of {name}, or do without it")


def cores(settings: Settings, root: Path = Path("/")) -> Iterator[Finding]:
    """Threads against the cores that the process may use, and those against the machine's."""
    usable, quota = usable_cores(root), cpu_quota(root)
    machine = psutil.cpu_count(logical=False) or usable
    if quota < 1:
        yield Finding(WARN, "cores", f"a quota of {quota:.1f} CPUs", "give the container at least one CPU")
    elif quota < machine and quota != int(quota):
        remedy = f"{usable} threads are used; give the container whole CPUs"
        yield Finding(WARN, "cores", f"a quota of {quota:.1f} CPUs of {machine}", remedy)
    elif usable < machine:
        remedy = "raise the container's CPU quota or the process's affinity, if more are meant for it"
        yield Finding(WARN, "cores", f"{usable} of the machine's {machine} may be used", remedy)
    else:
        yield Finding(OK, "cores", f"{usable}")
    options = device_options(settings)
    for device in settings.devices:
        given = options[device].session.get(THREADS, "0") if device in options else "0"
        threads = int(given) or settings.threads
        if threads and threads != usable:
            why = "they wait for each other" if threads > usable else "the others idle"
            remedy = f"leave GENAI_THREADS or {THREADS} out, or set it to {usable}"
            yield Finding(WARN, f"threads of {device}", f"{threads} on {usable} cores: {why}", remedy)
        elif device.startswith("cpu"):
            yield Finding(OK, f"threads of {device}", f"{threads or usable} on {usable} cores")


def model(settings: Settings) -> Iterator[Finding]:
    """The model directory's files, and whether its graph can run in a batch."""
    directory = Path(settings.model_dir)
    try:
        info = check_model_directory(directory)
    except ModelDirectoryError as error:
        yield Finding(FAIL, "model", error.message, "see README's “Get a model”, or name another with GENAI_MODEL_DIR")
        return
    try:
        check_models(settings)
    except ConfigurationError as error:
        yield Finding(
            FAIL, "model", error.message, "copy the tokenizer's files and the chat template from the original"
        )
        return
    size = weight_bytes(directory) / _MIB
    length = f"{info.context_length} tokens of context"
    yield Finding(OK, "model", f"{directory}: {length}, {info.vocab_size} tokens known, {size:.0f} MiB of weights")
    try:
        read_decoder_graph(directory)
    except DoesNotFit as reason:
        yield Finding(
            WARN, "batching", f"requests run one by one: {reason}", "see docs/models.md for models that batch"
        )
    except Exception as error:  # whatever a broken graph makes of its reader
        yield Finding(
            FAIL, "batching", f"{read_config(directory)['model']['decoder']['filename']}: {error}", "build anew"
        )
    else:
        yield Finding(OK, "batching", "the graph can run in a batch")


def memory(settings: Settings, root: Path = Path("/")) -> Iterator[Finding]:
    """What is free, against what the model takes."""
    directory, free = Path(settings.model_dir), free_memory(root)
    try:
        check_model_directory(directory)
    except ModelDirectoryError:
        yield Finding(OK, "memory", f"{free / _MIB:.0f} MiB are free")
        return
    need = int(weight_bytes(directory) * _LOADED) * len(settings.devices)
    try:
        graph = read_decoder_graph(directory)
        keys = graph.bytes_per_token * graph.slot_length(settings.max_length)
    except Exception:  # of a graph that the check of the model has told of
        keys = 0
    shown = f"{free / _MIB:.0f} MiB are free; weights need about {need / _MIB:.0f}, a request up to {keys / _MIB:.0f}"
    if need + keys > free:
        yield Finding(FAIL, "memory", shown, "take a smaller or further quantized model, or free some memory")
    elif need + keys * settings.max_batch_size > free:
        yield Finding(WARN, "memory", shown, "lower GENAI_MAX_LENGTH or GENAI_MAX_BATCH_SIZE")
    else:
        yield Finding(OK, "memory", shown)


def port(settings: Settings) -> Iterator[Finding]:
    """Whether the address can be listened on."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    where = f"{settings.host} port {settings.port}"
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        yield Finding(FAIL, "port", f"{where}: {reason}", "end what listens there, or take another with --port")
    else:
        yield Finding(OK, "port", f"{where} is free")


def cache(settings: Settings) -> Iterator[Finding]:
    """Whether packed weights can be kept."""
    folder = settings.cache_path
    if folder is None:
        yield Finding(OK, "cache", "none is wanted")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".doctor"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        remedy = "give GENAI_CACHE_DIR a folder that can be written, or set it to none"
        yield Finding(WARN, "cache", f"{folder}: {(error.strerror or str(error)).lower()}", remedy)
        return
    free = shutil.disk_usage(folder).free
    try:
        need = int(weight_bytes(Path(settings.model_dir)) * _PACKED)
    except (ModelDirectoryError, OSError, KeyError, TypeError):
        need = 0
    shown = f"{folder}: {free / _MIB:.0f} MiB are free"
    if free < need:
        yield Finding(WARN, "cache", f"{shown}, packed weights need {need / _MIB:.0f}", "free some disk")
    else:
        yield Finding(OK, "cache", shown)


def devices(settings: Settings) -> Iterator[Finding]:
    """Each device's engine, really started as `serve` would, which loads the model and warms up."""
    started = time.monotonic()
    try:
        supervisor = Supervisor(settings.model_copy(update={"log_level": "error"}))
    except GenaiServerError as error:
        yield Finding(FAIL, "devices", error.message, "correct the options")
        return
    try:
        supervisor.start()
        waiting = {(status.device, status.serial) for status in supervisor.statuses()}
        while waiting:
            for status in supervisor.statuses():
                which = (status.device, status.serial)
                if which in waiting and status.state != "starting":
                    waiting.remove(which)
                    label = f"{status.device} of {status.model}" if settings.models else status.device
                    yield _device(label, status.error, time.monotonic() - started)
            time.sleep(0.05)
    finally:
        supervisor.stop()


def _device(device: str, error: str | None, seconds: float) -> Finding:
    if error is None:
        return Finding(OK, f"device {device}", f"ready after {seconds:.1f} s")
    remedy = "the reason is the library's own; README says under “Troubleshooting” and “Devices” what may be missing"
    return Finding(FAIL, f"device {device}", error, remedy)


def checked_settings(settings: Settings) -> Iterator[Finding]:
    """What the configuration says of sessions and providers."""
    try:
        options = device_options(settings)
    except ConfigurationError as error:
        yield Finding(FAIL, "options", error.message, "see docs/from-triton.md for all options")
        return
    yield Finding(OK, "settings", f"devices {settings.device}, options are right")
    for device, given in options.items():
        for warning in given.warnings:
            yield Finding(WARN, f"options of {device}", warning, "change or remove it")
