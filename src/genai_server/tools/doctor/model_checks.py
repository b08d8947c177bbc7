"""`genai-server doctor`'s checks of settings and models. Each check yields findings and never raises."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from genai_server.cli.serve.loaders import text_loader
from genai_server.cli.serve.preflight import (
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
from genai_server.config.settings import Settings
from genai_server.config.sources import device_options, unknown_variables
from genai_server.engine.decoder_graph import DoesNotFit
from genai_server.engine.model.files import (
    GIVE_A_TEMPLATE,
    NO_CHAT_TEMPLATE,
    check_model_directory,
    weight_bytes,
)
from genai_server.engine.model.graph import read_cross_decoder, read_decoder_graph
from genai_server.engine.model.inventory import inventory
from genai_server.engine.model.native_library import NOT_INSTALLED, is_installed
from genai_server.errors import ChatTemplateError, ConfigurationError, GenaiServerError, ModelDirectoryError
from genai_server.media.audio import recordings
from genai_server.messages.server_status import EngineState
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.model_files.speech_model import transcribes
from genai_server.options.providers import CPU
from genai_server.supervisor.supervisor import Supervisor
from genai_server.system.installation import this_installation
from genai_server.text.codec import TextCodec
from genai_server.tools.doctor.finding import FAIL, MIB, OK, WARN, Finding

_WRITE = "let this user write there, or name another place"


def checked_settings(settings: Settings) -> Iterator[Finding]:
    """Check the settings as a whole, session and provider options, and unknown GENAI_* variables."""
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
    seen = set()
    for name in settings.served:
        for device, options in device_options(settings, name).items():
            for warning in options.warnings:
                if (device, warning) not in seen:
                    seen.add((device, warning))
                    yield Finding(WARN, f"options of {device}", warning, "change or remove it")


def _without_effect(settings: Settings) -> Iterator[Finding]:
    """Report settings that have no effect although the server starts."""
    for name, meant in unknown_variables().items():
        yield Finding(WARN, "settings", f"{name} is not a setting", f"did you mean {meant}?" if meant else "remove it")
    if warning := lone_reloader(settings):
        yield Finding(WARN, "settings", warning, "leave one of them out")
    if (why := why_no_profiles(settings)) is not None:
        yield Finding(WARN, "profiles", why, _WRITE)


def _check_options(settings: Settings) -> None:
    for name in settings.served:
        check_runners(settings, name)


def model(settings: Settings, name: str, *, with_text: bool = True) -> Iterator[Finding]:
    """Report faults of a model's files, and whether the model's graph can run in a batch.

    Without `with_text`, chat template and tokenizer are not loaded, because that needs onnxruntime-genai.
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
    """Report what is wrong with a model's draft model."""
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
    """Start each device's engine as `serve` would, including loading the model and warming up, and report the
    result.
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
                which = (status.device, status.serial)
                if which in waiting and status.state != EngineState.STARTING:
                    waiting.remove(which)
                    label = f"{status.device} of {status.model}" if settings.models else status.device
                    yield _device(label, status.error, time.monotonic() - started)
            time.sleep(0.05)
    finally:
        supervisor.stop()
    for about in tried:
        if about.is_too_large:
            yield Finding(FAIL, f"model {about.name}", about.shortage, "free some memory, or use a smaller model")
        elif about.on_demand:
            yield Finding(OK, f"model {about.name}", "is loaded by its first request (GENAI_MAX_MODELS); not tried now")


def _device(device: str, error: str | None, seconds: float) -> Finding:
    if error is None:
        return Finding(OK, f"device {device}", f"ready after {seconds:.1f} s")
    remedy = "the reason is the library's own; see docs/troubleshooting.md, and docs/devices.md for what may be missing"
    return Finding(FAIL, f"device {device}", error, remedy)
