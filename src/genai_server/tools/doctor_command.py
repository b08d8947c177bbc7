"""`genai-server doctor`: checks everything that serving needs, and suggests remedies.

It takes MODEL and the options of `genai-server serve`, whose --help lists them, and the same environment and files, but
fetches nothing. Each line is ok, warn or fail. The exit status is 1 if anything failed; serving would then fail, too.
"""

import argparse
import errno
import http.client
import importlib.metadata
import json
import logging
import platform
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from msgspec import structs

from genai_server import __version__
from genai_server.cli.model_argument import check_no_other, find
from genai_server.cli.screen import show
from genai_server.cli.serve.loaders import text_loader
from genai_server.cli.serve.preflight import (
    bind,
    check_access,
    check_cores,
    check_draft_model_of,
    check_runners,
    check_storage,
    check_traces,
    how_to_get,
    lone_reloader,
    takes_recordings,
    why_no_profiles,
)
from genai_server.cli.serve.welcome import url_of
from genai_server.config.environment import engine_environment
from genai_server.config.setting_form import AUTO
from genai_server.config.settings import Settings
from genai_server.config.sources import (
    add_options,
    device_options,
    engine_spec,
    in_typed_names,
    load_settings,
    unknown_variables,
)
from genai_server.engine.graph_description import DoesNotFit
from genai_server.engine.model.files import GIVE_A_TEMPLATE, NO_CHAT_TEMPLATE, check_model_directory, weight_bytes
from genai_server.engine.model.graph_reader import read_cross_decoder, read_decoder_graph
from genai_server.engine.model.inventory import inventory
from genai_server.engine.model.native_library import NOT_INSTALLED, is_installed
from genai_server.engine.runners.sequence_limits import batch_limits, with_cache_type
from genai_server.errors import ChatTemplateError, ConfigurationError, GenaiServerError, ModelDirectoryError
from genai_server.media.audio import recordings
from genai_server.messages.server_status import EngineCores, EngineState, ModelStatus
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.model_files.speech_and_vision import transcribes
from genai_server.options.providers import CPU, is_scripted
from genai_server.options.session import THREADS
from genai_server.supervisor.kv_cache_size import MemoryBudget
from genai_server.supervisor.model_pool import new_status
from genai_server.supervisor.supervisor import Supervisor, advice_for_nodes, cores_of_devices, shortage_of_node
from genai_server.system.installation import this_installation
from genai_server.system.resources import cpu_quota, free_memory, numa_nodes, usable_cores
from genai_server.text.codec import TextCodec

OK, WARN, FAIL = "ok", "warn", "fail"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """The result of one check of `genai-server doctor`, printed as one line: the state (ok, warn or fail), what was
    checked, what was found, and a remedy, which is "" if nothing needs to or can be done.
    """

    # OK, WARN or FAIL.
    state: str
    subject: str
    found: str
    # What to do about it; "" if nothing can be done.
    remedy: str = ""


_LIBRARIES = (
    *("onnxruntime-genai", "onnxruntime-genai-cuda"),
    *("onnxruntime-genai-directml", "onnxruntime-genai-winml"),
)
_RUNTIME = "onnxruntime"
_TESTED_VERSION = "0.18"
# Size of packed weights on disk, as a multiple of the weights of the model. Scales have 32 bits.
_PACKED_SIZE_FACTOR = 1.5
_MORE_MEMORY = "free some memory, set GENAI_KV_CACHE_TYPE to fp16 or int8, or use a smaller model"
_TRIAL_TIMEOUT = 60.0
_ANSWER_TIMEOUT = 2.0


def versions() -> Iterator[Finding]:
    """Yield findings about the versions of Python and of the libraries that run models: a failure if onnxruntime-genai
    is missing or installed in several variants, a warning if its version is not tested.
    """
    yield Finding(OK, "python", f"{platform.python_version()} on {platform.platform()}, genai-server {__version__}")
    installed = {}
    for name in _LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    shown = ", ".join(f"{name} {version}" for name, version in installed.items())
    if not installed:
        remedy = f"{this_installation().command('cpu')}; or cuda or winml for cpu: exactly one of them"
        yield Finding(FAIL, "library", "onnxruntime-genai is not installed", remedy)
    elif len(installed) > 1:
        remedy = f"pip uninstall {' '.join(installed)}, and install one of them again: all provide the same module"
        yield Finding(FAIL, "library", shown, remedy)
    elif not next(iter(installed.values())).startswith(f"{_TESTED_VERSION}."):
        yield Finding(WARN, "library", shown, f"this version is not tested; {_TESTED_VERSION} is")
    else:
        # The package for GPUs has another name.
        runtimes = dict.fromkeys(importlib.metadata.packages_distributions().get(_RUNTIME, []))
        shown = ", ".join([shown, *(f"{name} {importlib.metadata.version(name)}" for name in runtimes)])
        yield Finding(OK, "library", shown)


def providers() -> Iterator[Finding]:
    """Yield findings about the execution providers of ONNX Runtime (such as CUDA): which can be loaded, and for each
    other one why it cannot. They are tried in a separate process.
    """
    command = [sys.executable, "-m", "genai_server.engine.model.provider_trial"]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",  # messages of libraries may have another encoding
            timeout=_TRIAL_TIMEOUT,
            check=False,
            env=engine_environment(),
        )
        tried: dict[str, str | None] | None = json.loads(result.stdout or "null")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        yield Finding(FAIL, "providers", f"cannot be tested: {error}", "install genai-server again")
        return
    if tried is None:
        reason = (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
        yield Finding(FAIL, "providers", f"onnxruntime does not load: {reason}", "install genai-server again")
        return
    yield Finding(OK, "providers", ", ".join(name for name, why in tried.items() if why is None) or "none")
    for name, why in tried.items():
        if why is not None:
            yield Finding(
                WARN, f"provider {name}", " ".join(why.split()), f"install the libraries of {name}, or ignore this"
            )


def cores(settings: Settings, root: Path = Path("/")) -> Iterator[Finding]:
    """Yield findings about processor cores: whether the server may use all cores of the machine, the NUMA nodes if
    there are several, and whether the configured numbers of threads fit the cores.

    `root` is the root of the file system from which limits of containers are read; tests name another one.
    """
    usable, quota = usable_cores(root), cpu_quota(root)
    machine = psutil.cpu_count(logical=False) or usable
    if quota < 1:
        yield Finding(WARN, "cores", f"a quota of {quota:.1f} CPUs", "give the container at least one CPU")
    elif quota < machine and quota != int(quota):
        remedy = f"{usable} threads are used; give the container whole CPUs"
        yield Finding(WARN, "cores", f"a quota of {quota:.1f} CPUs of {machine}", remedy)
    elif usable < machine:
        remedy = "raise the container's CPU quota or the process's affinity if it should use more"
        yield Finding(WARN, "cores", f"{usable} of the machine's {machine} may be used", remedy)
    else:
        yield Finding(OK, "cores", f"{usable}")
    nodes = numa_nodes(root)
    planned = cores_of_devices(settings.devices, nodes, quota)
    if len(nodes) > 1:
        shown = (f"{node.number} has {len(node.cores)} cores, {node.free_memory / MIB:.0f} MiB free" for node in nodes)
        weights = MemoryBudget(settings).weights_of_engine(_status(settings, next(iter(settings.served))))
        yield Finding(OK, "NUMA nodes", "; ".join(shown), advice_for_nodes(settings.devices, nodes, weights))
    for name in settings.served:
        yield from _threads(settings, name, usable, planned)


def _threads(settings: Settings, model: str, usable: int, planned: dict[str, EngineCores]) -> Iterator[Finding]:
    """Yield a finding for each device of a model: whether its configured number of threads equals the number of its
    cores.

    `model` is the model's name, `usable` the number of cores that the server may use, and `planned` has the cores of
    devices that have cores of their own, by device; the other devices use all usable cores.
    """
    for device, options in device_options(settings, model).items():
        subject = f"threads of {device}" + (f" for {model}" if settings.models else "")
        threads = int(options.session.get(THREADS, "0")) or settings.threads
        assigned = planned.get(device)
        cores = usable if assigned is None else assigned.threads
        if threads and threads != cores:
            why = "they wait for each other" if threads > cores else "the others idle"
            remedy = f"leave GENAI_THREADS or {THREADS} out, or set it to {cores}"
            yield Finding(WARN, subject, f"{threads} on {cores} cores: {why}", remedy)
        elif device.startswith("cpu"):
            yield Finding(OK, subject, f"{cores} on {cores} cores" if assigned is None else assigned.in_words())


def memory(settings: Settings, root: Path = Path("/")) -> Iterator[Finding]:
    """Yield findings about memory: whether the weights of the configured models fit into free memory, and for each
    model the context length that the remaining memory allows.

    Broken models are left out, because other checks report them. `root` is the root of the file system from which
    limits of containers are read; tests name another one.
    """
    free = free_memory(root)
    budget = MemoryBudget(settings, free=lambda: free)
    models = [_status(settings, name) for name, path in settings.served.items() if _weights(path)]
    if isinstance(settings.max_models, int) and settings.max_models:
        models = sorted(models, key=budget.weights, reverse=True)[: settings.max_models]
    needed = sum(map(budget.weights, models))
    shown = f"{free / MIB:.0f} MiB are free"
    if models:
        of = f" of {len(models)} models" if len(models) > 1 else ""
        shown += f"; weights{of} need about {needed / MIB:.0f}"
    if needed > free:
        yield Finding(FAIL, "memory", shown, "use a smaller or further quantized model, or free some memory")
        return
    yield Finding(OK, "memory", shown)
    nodes = numa_nodes(root)
    for device, cores in cores_of_devices(settings.devices, nodes).items():
        for shortage in (shortage_of_node(device, cores, nodes, budget.weights_of_engine(model)) for model in models):
            if shortage:
                yield Finding(WARN, f"memory of {device}", shortage, "free some memory, or use a smaller model")
    for model in models:
        subject = f"context of {model.name}" if settings.models else "context"
        yield from _context(subject, settings, model, max(0, free - needed) // (2 * len(models)))


def _status(settings: Settings, name: str) -> ModelStatus:
    """Return the status that the configured model `name` has before it is loaded, with which its need of memory can be
    computed.
    """
    status = new_status(name, settings.served[name], settings.devices, 0)
    return structs.replace(status, draft_model=settings.draft_model_of(name))


def _weights(directory: str) -> int:
    """Return the size in bytes of the weights in a model directory; 0 if the directory is missing, broken or cannot be
    read.
    """
    try:
        check_model_directory(Path(directory))
        return weight_bytes(Path(directory))
    except Exception:  # a broken model, which other findings report
        return 0


def _context(subject: str, settings: Settings, status: ModelStatus, kv_bytes: int) -> Iterator[Finding]:
    """Yield a finding about the maximum number of tokens in a sequence of a model on a CPU, if the KV cache has
    `kv_bytes` bytes of memory. Nothing is found for models that cannot run in a batch.

    `subject` is the title of the finding, and `status` the model's status before it is loaded.
    """
    directory = status.path
    spec = structs.replace(
        engine_spec(settings, "cpu", directory), kv_bytes=max(1, kv_bytes), draft_model=status.draft_model
    )
    try:
        read_graph = read_cross_decoder if transcribes(Path(directory)) else read_decoder_graph
        description = check_model_directory(Path(directory))
        graph = with_cache_type(spec, read_graph(Path(directory)).in_32_bits(), description.context_length)
        limits, model = batch_limits(spec, graph, description)
    except (DoesNotFit, ConfigurationError) as error:
        if isinstance(error, ConfigurationError) or "tokens" in str(error):
            yield Finding(FAIL, subject, str(error), _MORE_MEMORY)
        return  # other models have no batch, which another finding reports
    except Exception:  # a broken graph, which other findings report
        return
    size = graph.bytes_per_token * model.max_length / MIB
    shown = f"{model.max_length} tokens ({model.limited_by}); their keys and values take {size:.0f} MiB"
    if model.max_length < model.context_length and settings.max_length == AUTO:
        yield Finding(WARN, subject, f"{shown}; the model's context is {model.context_length}", _MORE_MEMORY)
    elif graph.bytes_per_token * limits.max_length > kv_bytes:
        yield Finding(WARN, subject, f"{shown}, {kv_bytes / MIB:.0f} are free for them", "lower GENAI_MAX_LENGTH")
    else:
        yield Finding(OK, subject, shown)


def port(settings: Settings) -> Iterator[Finding]:
    """Yield a finding that says whether the server can listen on its configured address and port, or whether a
    genai-server is already running there.
    """
    try:
        bind(settings).close()
    except ConfigurationError as error:
        in_use = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        if in_use and _is_served(settings):
            yield Finding(OK, "port", f"a genai-server is running on {settings.host} port {settings.port}")
            return
        remedy = "stop the program that listens there, or choose another --port" if in_use else "change HOST or PORT"
        yield Finding(FAIL, "port", error.message, remedy)
    else:
        yield Finding(OK, "port", f"{settings.host} port {settings.port or '(any)'} is free")


def _is_served(settings: Settings) -> bool:
    """Whether a genai-server answers GET /healthz at the configured address."""
    address = urlsplit(url_of(settings.host, settings.port, is_https=bool(settings.tls_cert))).netloc
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_TIMEOUT)
    if settings.tls_cert:
        unverified = ssl.create_default_context()  # the certificate may be for another name than this address
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address, timeout=_ANSWER_TIMEOUT, context=unverified)
    try:
        with closing(connection):
            connection.request("GET", "/healthz")
            return isinstance(json.load(connection.getresponse())["devices"], dict)
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return False


def cache(settings: Settings) -> Iterator[Finding]:
    """Yield a finding about the folder in which the server keeps packed (rearranged for the processor) weights between
    starts: whether it can be written and has enough free space.
    """
    folder = settings.cache_path
    if folder is None:
        yield Finding(OK, "cache", "switched off")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".doctor"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        remedy = "set GENAI_CACHE_DIR to a writable folder, or to none"
        yield Finding(WARN, "cache", f"{folder}: {(error.strerror or str(error)).lower()}", remedy)
        return
    free = shutil.disk_usage(folder).free
    planned = cores_of_devices(settings.devices, numa_nodes()).values()
    copies = max(1, sum(cores.node is not None for cores in planned))
    needed = int(sum(map(_weights, set(settings.served.values()))) * _PACKED_SIZE_FACTOR * copies)
    shown = f"{folder}: {free / MIB:.0f} MiB are free"
    if free < needed:
        yield Finding(WARN, "cache", f"{shown}, packed weights need {needed / MIB:.0f}", "free some disk space")
    else:
        yield Finding(OK, "cache", shown)


_WRITE = "let this user write there, or name another place"


def checked_settings(settings: Settings) -> Iterator[Finding]:
    """Yield findings about settings that contradict each other or cannot work, wrong session and provider options,
    settings without effect, and variables that begin with GENAI_ but are no settings.
    """
    remedies: dict[Callable[[Settings], object], str] = {
        check_access: "see docs/deployment.md",
        check_cores: "name only nodes that it may use, or cpu for one engine with all cores",
        _check_options: "see docs/evidence/options.md for all options",
        check_traces: "correct the endpoint or install the extra otel",
        check_storage: _WRITE,
    }
    failed = False
    for check, remedy in remedies.items():
        try:
            check(settings)
        except ConfigurationError as error:
            failed = True
            yield Finding(FAIL, "settings", error.message, remedy)
    yield from _without_effect(settings)
    if failed:
        return
    yield Finding(OK, "settings", f"devices {settings.device}, options are right")
    reported = set()
    for name in settings.served:
        for device, options in device_options(settings, name).items():
            for warning in options.warnings:
                if (device, warning) not in reported:
                    reported.add((device, warning))
                    yield Finding(WARN, f"options of {device}", warning, "change or remove it")


def _without_effect(settings: Settings) -> Iterator[Finding]:
    """Yield a warning for each setting that has no effect although the server starts, such as a misspelled variable."""
    for name, suggestion in unknown_variables().items():
        yield Finding(
            WARN, "settings", f"{name} is not a setting", f"did you mean {suggestion}?" if suggestion else "remove it"
        )
    if warning := lone_reloader(settings):
        yield Finding(WARN, "settings", warning, "leave one of them out")
    if (why := why_no_profiles(settings)) is not None:
        yield Finding(WARN, "profiles", why, _WRITE)


def _check_options(settings: Settings) -> None:
    for name in settings.served:
        check_runners(settings, name)


def model(settings: Settings, name: str, *, with_text: bool = True) -> Iterator[Finding]:
    """Yield findings about the configured model `name`: faults of its files, its size and context length, its draft
    model, and whether its graph can run several requests in a batch.

    Without `with_text`, the chat template and the tokenizer are not loaded, because loading needs onnxruntime-genai.
    """
    subject = f"model {name}" if settings.models else "model"
    directory, get_one = Path(settings.served[name]).absolute(), how_to_get(settings.served[name], settings.models_path)
    if not directory.is_dir():
        yield Finding(FAIL, subject, f"directory {directory} does not exist", get_one)
        return
    faults = [entry for entry in inventory(directory) if entry.fault]
    for entry in faults:
        where = "" if str(directory) in entry.fault else f"{directory / entry.name} "
        yield Finding(FAIL, subject, where + entry.fault, entry.remedy or get_one)
    if faults:
        return
    try:
        info = check_model_directory(directory)
        codecs: Mapping[str, TextCodec] = {}
        if with_text:
            codecs = text_loader(settings)(str(directory), settings.devices, settings.chat_template_of(name))
    except ChatTemplateError as error:
        yield Finding(FAIL, subject, f"GENAI_CHAT_TEMPLATE: {error.message}", "name another file or template")
        return
    except (ConfigurationError, ModelDirectoryError) as error:
        remedy = "copy the tokenizer's files and the chat template from the original"
        yield Finding(FAIL, subject, error.message, remedy)
        return
    size, length = weight_bytes(directory) / MIB, f"{info.context_length} tokens of context"
    yield Finding(OK, subject, f"{directory}: {length}, a vocabulary of {info.vocab_size}, {size:.0f} MiB of weights")
    yield from _draft_model(subject, settings, name)
    if (transcribes(directory) or any(map(takes_recordings, codecs.values()))) and not recordings.is_installed():
        remedy = this_installation().extra_command(recordings.EXTRA)
        yield Finding(WARN, subject, "it takes recordings, which cannot be decoded without FFmpeg's libraries", remedy)
    if (task := task_of(directory)).pools:
        yield Finding(OK, f"batching of {name}" if settings.models else "batching", f"{task}: texts are read together")
        return
    if task is Task.GENERATE and not all(codec.has_chat_template for codec in codecs.values()):
        yield Finding(WARN, subject, NO_CHAT_TEMPLATE, GIVE_A_TEMPLATE)
    yield _batching(f"batching of {name}" if settings.models else "batching", directory, settings.devices)


def _draft_model(subject: str, settings: Settings, name: str) -> Iterator[Finding]:
    """Yield findings about what is wrong with the draft model (for speculative decoding) of the configured model
    `name`; nothing if it has none or all is right. `subject` is the title of the findings.
    """
    draft_model = settings.draft_model_of(name)
    if draft_model and (why := task_of(Path(settings.served[name])).why_no_drafts):
        remedy = "name it for models that complete text only: GENAI_DRAFT_MODEL=MODEL=PATH"
        yield Finding(WARN, subject, f"GENAI_DRAFT_MODEL={draft_model} has no effect: {why}", remedy)
    try:
        check_draft_model_of(settings, name)
    except ConfigurationError as error:
        yield Finding(FAIL, subject, error.message, "name a smaller model of the same family, or none")


def _batching(subject: str, directory: Path, devices: Iterable[str]) -> Finding:
    try:
        (read_cross_decoder if transcribes(directory) else read_decoder_graph)(directory)
    except DoesNotFit as reason:
        return Finding(WARN, subject, f"requests run one by one: {reason}", "see docs/models.md for models that batch")
    except Exception as error:  # an unusual graph may break its reader in any way
        return Finding(FAIL, subject, f"the graph cannot be read: {error}", "build the model again")
    if any(device.partition(":")[0] == CPU for device in devices) and not is_installed():
        remedy = "install it: ./scripts/install in a clone, or pip install ./native"
        return Finding(WARN, subject, f"requests run one by one on the CPU: {NOT_INSTALLED}", remedy)
    return Finding(OK, subject, "the graph can run in a batch")


def devices(settings: Settings) -> Iterator[Finding]:
    """Start the engine process of each configured device, including loading the model and warming up, and yield a
    finding for each about the result. All engines are stopped at the end.
    """
    started = time.monotonic()
    try:
        supervisor = Supervisor(settings.model_copy(update={"log_level": "error"}))
    except GenaiServerError as error:
        yield Finding(FAIL, "devices", error.message, "correct the options")
        return
    try:
        supervisor.start()
        tried = supervisor.model_statuses()
        waiting = {(status.device, status.serial) for status in supervisor.statuses()}
        while waiting:
            for status in supervisor.statuses():
                key = (status.device, status.serial)
                if key in waiting and status.state != EngineState.STARTING:
                    waiting.remove(key)
                    label = f"{status.device} of {status.model}" if settings.models else status.device
                    yield _device(label, status.error, time.monotonic() - started)
            time.sleep(0.05)
    finally:
        supervisor.stop()
    for model in tried:
        if model.is_too_large:
            yield Finding(FAIL, f"model {model.name}", model.shortage, "free some memory, or use a smaller model")
        elif model.on_demand:
            yield Finding(OK, f"model {model.name}", "is loaded by its first request (GENAI_MAX_MODELS); not tried now")


def _device(device: str, error: str | None, seconds: float) -> Finding:
    if error is None:
        return Finding(OK, f"device {device}", f"ready after {seconds:.1f} s")
    remedy = "the reason is the library's own; see docs/troubleshooting.md, and docs/devices.md for what may be missing"
    return Finding(FAIL, f"device {device}", error, remedy)


_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument MODEL and the options of `genai-server serve` to `parser`, and set `run` as the function that
    executes `genai-server doctor`.
    """
    parser.usage = "%(prog)s [MODEL] [OPTION OF SERVE]…"
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a model directory, or the name of a fetched one")
    add_options(parser, listed=())
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server doctor`: make all checks and print a line for each finding. `arguments` are the parsed
    command line. Returns the exit status, 1 if one of the findings is a failure.
    """
    # The findings include what the engines' supervisor would log.
    logging.getLogger("genai_server").addHandler(logging.NullHandler())
    failed = False
    options = vars(arguments)
    for finding in examine(options):
        failed |= finding.state == FAIL
        text = in_typed_names(finding.found, options)
        show((f"{finding.state:<5}", _STYLES[finding.state]), f" {finding.subject}: {text}")
        if finding.remedy:
            show(f"      → {in_typed_names(finding.remedy, options)}")
    return 1 if failed else 0


def examine(options: dict[str, str | None]) -> Iterator[Finding]:
    """Make all checks and yield their findings. If the settings are wrong, only checks that do not depend on settings
    are made.

    `options` are the parsed options of the command line by name.
    """
    has_library = True
    for finding in versions():
        has_library &= finding.state != FAIL
        yield finding
    if has_library:  # without it there is no ONNX Runtime either
        yield from providers()
    try:
        settings = load_settings(options)
        if model := options.get("model"):
            check_no_other(model, options.get("model_dir"), settings.models)
            settings = load_settings({**options, "model_dir": str(find(model, settings.models_path))})
    except ConfigurationError as error:
        yield Finding(FAIL, "settings", error.message, "correct it; see docs/settings.md")
        return
    wrong = False
    for finding in checked_settings(settings):
        wrong |= finding.state == FAIL
        yield finding
    if not wrong:
        yield from _with(settings, has_library=has_library)


def _with(settings: Settings, *, has_library: bool) -> Iterator[Finding]:
    yield from cores(settings)
    yield from memory(settings)
    yield from port(settings)
    yield from cache(settings)
    if all(map(is_scripted, settings.devices)):
        yield from devices(settings)
        return
    broken = not has_library
    for name in settings.served:
        for finding in model(settings, name, with_text=has_library):
            broken |= finding.state == FAIL
            yield finding
    if not broken:  # a broken model would only fail again on each device
        yield from devices(settings)
