"""The models that an API process knows. The supervisor, the process that starts engines and restarts them, reports
which models are configured and loaded. For each loaded model, a `ServedModel` has the clients of the model's engine
processes, its tokenizer and chat template, and its `system_fingerprint`. The `Catalog` has all models: it finds the
model that a request names (a `ChosenModel`), and asks the supervisor to load it where needed.

`ModelStore`, `StoredModel` and `Variant` describe the models in GENAI_MODELS_DIR and those that a hub offers for
download; `cli/serve/loaders.py` implements the functions of `ModelStore`.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from genai_server import __version__
from genai_server.config.settings import Settings
from genai_server.config.sources import device_options
from genai_server.engine_client.client import EngineClient, ReadStatus, Router
from genai_server.engine_client.supervisor import SupervisorClient
from genai_server.errors import (
    ConfigurationError,
    ModelNotFound,
    ModelsBusy,
    ModelTooLarge,
    NoEngineReady,
    QueueFull,
    TaskUnsupported,
    in_one_line,
    quoted,
)
from genai_server.messages.generation_request import Adapter, ModelInfo
from genai_server.messages.server_status import ANY_NAME, EngineState, EngineStatus, ModelState, ModelStatus
from genai_server.messages.supervisor_protocol import Command, WantModel
from genai_server.model_files.pooling_model import Task
from genai_server.model_files.speech_and_vision import Medium
from genai_server.text.codec import TextCodec

log = logging.getLogger(__name__)

T = TypeVar("T")

# Checks a model directory and reads its text side for each of the devices. The last argument is a chat template that
# replaces the model's own, or "". May raise any exception: a library reads unchecked files.
LoadText = Callable[[str, Sequence[str], str], Mapping[str, TextCodec]]
# Gives a model's `system_fingerprint`. Raises ConfigurationError.
Fingerprint = Callable[[ModelStatus], str]


class ServedModel:
    """A loaded model in an API process: the clients of its engine processes, and its tokenizer and chat template. The
    Catalog creates it when the supervisor reports the model, and closes it. A new object connects to the engines and
    reads the tokenizer and template in a thread; `takes_work` says when it is ready. For use by the event loop's thread
    only.
    """

    def __init__(
        self, status: ModelStatus, read_status: ReadStatus, load_text: LoadText, fingerprint: Fingerprint
    ) -> None:
        self.name = status.name
        self.devices = status.devices
        self.router = Router(status.devices, read_status, status.name, status.serial)
        # Why the text side cannot be read, if it cannot.
        self.error: str | None = None
        # `system_fingerprint` of its answers; "" until the text side is read.
        self.fingerprint = ""
        self._about = status
        # Text sides by device; empty until they are read.
        self._codecs: Mapping[str, TextCodec] = {}
        self._reading = asyncio.create_task(self._read_text(load_text, fingerprint))
        self._attached = asyncio.create_task(self.router.run())

    @property
    def is_readable(self) -> bool:
        """Whether the tokenizer and the chat template have been read successfully."""
        return bool(self._codecs)

    @property
    def takes_work(self) -> bool:
        """Whether the tokenizer and the chat template have been read and an engine is connected, so that requests can
        be sent to the model.
        """
        return self.is_readable and any(engine.is_connected for engine in self.router.engines.values())

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of prompt and answer together: the lowest that an engine of the model has reported.
        None until an engine has reported one.
        """
        return None if self._shortest is None else self._shortest.max_length

    @property
    def limited_by(self) -> str:
        """What limits `max_length`, in words for error messages, such as a setting; "" until an engine has
        reported it.
        """
        return "" if self._shortest is None else self._shortest.limited_by

    @property
    def _shortest(self) -> ModelInfo | None:
        """What the engine with the lowest `max_length` has reported of the model; None before any report."""
        models = [engine.model for engine in self.router.engines.values()]
        reported = [model for model in models if model is not None]
        return min(reported, key=lambda model: model.max_length, default=None)

    @property
    def codec(self) -> TextCodec:
        """The tokenizer and chat template for the model's first device, for work that needs no certain device, since
        all devices run the same model. Raises NoEngineReady until they have been read, and if reading them has failed.
        """
        return self.codec_of(self.devices[0])

    def codec_of(self, device: str) -> TextCodec:
        """Return the tokenizer and chat template for the device `device`. Raises NoEngineReady until they have been
        read, and if reading them has failed.
        """
        if not self._codecs:
            raise NoEngineReady(f"the text side of model {self.name} {self.error or 'is still being read'}")
        return self._codecs[device]

    async def read(self) -> None:
        """Wait until the tokenizer and the chat template have been read, or until reading them has failed; `error` then
        has the reason.
        """
        await asyncio.shield(self._reading)

    async def leave(self) -> None:
        """Disconnect from the engines, because the model is unloaded or the server stops. The requests that this
        process has sent to them fail.
        """
        self._attached.cancel()
        self._reading.cancel()
        await asyncio.gather(self._attached, self._reading, return_exceptions=True)

    def close(self) -> None:
        """Free the tokenizers. Called when the server stops."""
        for codec in self._codecs.values():
            codec.close()

    async def _read_text(self, load_text: LoadText, fingerprint: Fingerprint) -> None:
        status = self._about
        try:
            self.fingerprint = await read_files(status.path, partial(fingerprint, status))
            load = partial(load_text, status.path, status.devices, status.chat_template)
            self._codecs = await read_files(status.path, load)
        except ConfigurationError as error:
            self.error = f"cannot be read: {error.message}"
            log.error("the text side of model %s %s", self.name, self.error)


async def read_files(path: str, load: Callable[[], T]) -> T:
    """Call `load` in a thread and return its result. `load` reads files of the model in the directory `path`.

    Raises ConfigurationError: every exception of `load` is converted to one. Some could not be passed on, because a
    future does not accept StopIteration, and SystemExit would end the event loop.
    """

    def run() -> T:
        try:
            return load()
        except ConfigurationError:
            raise
        except BaseException as error:
            log.exception("reading the files of %s", path)
            raise ConfigurationError(f"{path} cannot be used: {in_one_line(error)}") from None

    return await asyncio.to_thread(run)


# Settings that can affect answers, if only by rounding.
_SETTINGS = (
    "attention_type",
    "exact",
    "kv_cache_type",
    "max_length",
    "encoder_weights",
    "scheduler",
    "speculation",
    "threads",
    "tool_parser",
)
# Directories whose names contain library versions. Reading all distributions would take longer.
_LIBRARIES = ("onnxruntime*.dist-info", "genai_server_native*.dist-info")


def fingerprint(settings: Settings, status: ModelStatus) -> str:
    """Return the `system_fingerprint` of a model as it is served: `fp_` and a hash of everything that can affect
    answers.

    The hash covers the model's files (name, size and modification time), the versions of the server and its libraries,
    the chat template, the devices, and several settings. Slow, so call it in a thread. Raises ConfigurationError.
    """
    paths = [path for path in (*Path(status.path).glob("*"), Path(status.chat_template)) if path.is_file()]
    parts = {
        "files": sorted((path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in paths),
        "libraries": sorted(
            folder.name for path in sys.path for form in _LIBRARIES for folder in Path(path).glob(form)
        ),
        "server": __version__,
        "settings": {name: getattr(settings, name) for name in _SETTINGS},
        "chat_template": status.chat_template,
        "devices": status.devices,
        "options": msgspec.to_builtins(device_options(settings, status.name, status.devices)),
    }
    return f"fp_{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]}"


# Seconds between two looks at what this process is connected to, and between two requests to load a model.
_UPDATE_INTERVAL = 0.1
_LOAD_REQUEST_INTERVAL = 1.0
# Seconds that a request waits for memory, if other models' memory would not suffice for its own.
PATIENCE = 30.0
# The name of every model without a configured one until version 0.2, which clients still send.
FORMER_DEFAULT = "onnx-genai"
# Written around a name by Ollama's clients: the hub's address and the tag.
_HUB = re.compile(r"^(https://)?(hf|huggingface)\.co/")
_TAG = ":latest"
_UNSUPPORTED_TASKS = {
    Task.GENERATE: "generates no text",
    Task.EMBED: "makes no embeddings",
    Task.RERANK: "cannot rerank or score texts",
    Task.TRANSCRIBE: "does not transcribe recordings",
}


def plain_name(name: str) -> str:
    """Return a model's name without what Ollama's clients add to it: the tag `:latest` at the end, and the address of a
    hub, such as `hf.co/`, at the beginning.
    """
    return _HUB.sub("", name).removesuffix(_TAG)


def names_of(status: ModelStatus) -> list[str]:
    """Return all names by which requests can choose a model or one of its adapters: the model's name, its aliases, and
    NAME:ADAPTER for each LoRA adapter.
    """
    aliases = [alias for alias in status.aliases if alias != ANY_NAME]
    return [status.name, *aliases, *(ChosenModel(status, adapter).id for adapter in status.adapters)]


def task_unsupported(model: str, task: Task, able: Sequence[str]) -> TaskUnsupported:
    """Return the error for a request that asks the model `model` for a task that it does not support. The error's
    message lists `able`, the names of the models that support the task.
    """
    alternatives = f"{', '.join(map(quoted, able))} can" if able else "no model that is served can"
    return TaskUnsupported("model", f"{quoted(model)} {_UNSUPPORTED_TASKS[task]}; {alternatives}")


@dataclass(frozen=True)
class ChosenModel:
    """The model that a request has chosen by its field `model`, and the LoRA adapter if that field names one.
    `Catalog.choose` creates it.
    """

    # Its status when it was chosen.
    about: ModelStatus
    # The one of its adapters that the request names, if it names one.
    adapter: Adapter | None = None

    @property
    def id(self) -> str:
        """The name that responses give for the model, NAME or NAME:ADAPTER, whichever of the model's names the request
        used.
        """
        return self.about.name if self.adapter is None else f"{self.about.name}:{self.adapter.name}"


class Catalog:
    """All models as an API process sees them: their status, and how requests choose and reach them. For each loaded
    model, the catalog keeps a `ServedModel`, which connects to the engines and reads the tokenizer and chat template.
    `create_app` creates it, and it works within the context `followed`. For use by the event loop's thread only, except
    where noted.
    """

    def __init__(
        self, supervisor: SupervisorClient, load_text: LoadText, fingerprint: Fingerprint, max_waiting: int
    ) -> None:
        self._load_text = load_text
        self._fingerprint = fingerprint
        self._supervisor = supervisor
        # Keyed by serial number.
        self._served: dict[int, ServedModel] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        # Most requests that wait for one model to be loaded, and how many do, by the model's name.
        self._max_waiting = max_waiting
        self._waiting: Counter[str] = Counter()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator["Catalog"]:
        """Context manager in which the catalog follows the changes of models that the supervisor reports. Yields the
        catalog itself.

        The block begins once the tokenizers and chat templates of all loaded models have been read. At its end, all
        models are disconnected and closed.
        """
        await self._supervisor.ready()
        self._update()
        for model in list(self._served.values()):
            await model.read()
        following = asyncio.create_task(self._follow())
        try:
            yield self
        finally:
            following.cancel()
            models = list(self._served.values())
            await asyncio.gather(following, *(model.leave() for model in models), return_exceptions=True)
            for model in models:
                model.close()

    def statuses(self) -> list[ModelStatus]:
        """Return the current status of all models, loaded or not. The first model serves requests that name no model.
        Thread-safe.
        """
        return self._supervisor.status.models

    async def check_text(self, path: str, devices: Sequence[str], chat_template: str) -> None:
        """Check that the tokenizer and the chat template of a model that is not served yet can be used, by reading
        them.

        `path` is the model's directory, `devices` are the devices on which it shall run, and `chat_template` is the
        path of a template that replaces the model's own, or "". Raises ConfigurationError if the tokenizer or the
        template cannot be used.
        """
        await read_files(path, partial(self._load_text, path, devices, chat_template))

    def state(self, status: ModelStatus) -> ModelState:
        """Return a model's state as clients of this API process see it, which may differ from the supervisor's.

        A loaded model counts as READY only once this process can send it requests, and as LOADING until then. A model
        counts as FAILED also if this process cannot read its tokenizer or chat template.
        """
        served = self.served(status)
        if served is not None and served.error is not None:
            return ModelState.FAILED
        if status.state == ModelState.READY and (served is None or not served.takes_work):
            return ModelState.LOADING
        return status.state

    def usable(self) -> list[ModelStatus]:
        """Return the status of each model that requests can use, now or once it is loaded: all models that have not
        failed.
        """
        return [status for status in self.statuses() if self.state(status) != ModelState.FAILED]

    def engine_statuses(self, status: ModelStatus) -> list[EngineStatus]:
        """Return the status of each engine of a model, one for each of its devices. The engines of a model that this
        process does not serve now count as unloaded.
        """
        served = self.served(status)
        if served is None:
            return [EngineStatus(device, EngineState.UNLOADED, model=status.name) for device in status.devices]
        return [engine.status() for engine in served.router.engines.values()]

    def attached_engines(self) -> list[EngineClient]:
        """Return the clients of the engines of all models that this process is connected to now. Thread-safe."""
        return [engine for served in list(self._served.values()) for engine in served.router.engines.values()]

    def adapter_ids(self) -> list[str]:
        """Return the ids by which requests choose the LoRA adapters of loaded models, each NAME:ADAPTER.
        Thread-safe.
        """
        loaded = (status for status in self.statuses() if status.state == ModelState.READY)
        return [f"{status.name}:{adapter.name}" for status in loaded for adapter in status.adapters]

    def served(self, status: ModelStatus) -> ServedModel | None:
        """Return the engines and the tokenizer of a model; None unless the model is loaded, being loaded or being
        unloaded.

        None is also returned until this process has noticed that the model is being loaded.
        """
        return None if status.state == ModelState.UNLOADED else self._served.get(status.serial)

    def find(self, name: str | None, *, param: str = "model") -> ModelStatus:
        """Return the status of the model that has `name` as its name or alias, as it is or in the form of `plain_name`;
        that of the first model if `name` is None.

        Raises ModelNotFound, which names `param` as the request's field with the name.
        """
        models = [status for status in self.statuses() if not status.leaving]
        if name is None and models:
            return models[0]
        for form in _forms(name):
            if (match := _named(models, form)) is not None:
                return match
        if not models:
            raise ModelNotFound("no model is served now", param=param, name=name)
        names = ", ".join(quoted(status.name) for status in models)
        shown = "the model" if name is None else f"model {quoted(name)}"
        is_are = "is" if len(models) == 1 else "are"
        raise ModelNotFound(f"{shown} is not served; {names} {is_are}", param=param, name=name)

    def choose(self, id: str | None) -> ChosenModel:
        """Return the model with the id `id`, and the LoRA adapter that the id names, if any; the first model if `id` is
        None. Raises ModelNotFound.

        An id is a model's name or alias, with or without `:ADAPTER`, or the name of an adapter that only one model has.
        The id is also looked up without what Ollama's clients add (see `plain_name`). A model with the alias `*` takes
        all other ids.
        """
        models = self.statuses()
        without_adapter: ModelStatus | None = None
        for form in _forms(id):
            if _named(models, form) is not None:
                return ChosenModel(self.find(form))
            name, _, adapter = form.rpartition(":")
            if (status := _named(models, name)) is not None:
                for candidate in status.adapters:
                    if candidate.name == adapter:
                        return ChosenModel(self.find(name), candidate)
                without_adapter = status
        if without_adapter is None:
            adapters = [
                (status, candidate) for status in models for candidate in status.adapters if candidate.name == id
            ]
            if len(adapters) == 1:
                ((status, candidate),) = adapters
                return ChosenModel(self.find(status.name), candidate)
            return ChosenModel(self.find(ANY_NAME if id is not None and _named(models, ANY_NAME) is not None else id))
        names = ", ".join(quoted(candidate.name) for candidate in without_adapter.adapters) or "none"
        raise ModelNotFound(
            f"model {quoted(without_adapter.name)} has no adapter {quoted(adapter)}; its adapters: {names}",
            param="model",
            name=id,
        )

    def choose_for(self, id: str | None, task: Task) -> ChosenModel:
        """Return the model with the id `id`, as `choose` does; if `id` is None, the first model that supports the task.

        Raises ModelNotFound, and TaskUnsupported if the model with this id does not support the task.
        """
        able = [status for status in self.statuses() if status.task is task and not status.leaving]
        if id is None and able:
            return ChosenModel(able[0])
        chosen = self.choose(id)
        if chosen.about.task is task:
            return chosen
        raise task_unsupported(chosen.about.name, task, [status.name for status in able])

    def taking(self, medium: Medium) -> list[str]:
        """Return the names of the models that take a medium, images or audio, in chats."""
        return [status.name for status in self.statuses() if status.medium is medium and not status.leaving]

    def engines(self, model: str | None = None, device: str | None = None) -> list[EngineClient]:
        """Return the clients of engines: those of the model with the name `model`, or of all loaded models if it is
        None, on the device `device`, or on all devices if it is None.

        Raises ModelNotFound, InvalidField for a device on which none of these models runs, and NoEngineReady if none of
        these models is loaded.
        """
        chosen = self.statuses() if model is None else [self.find(model)]
        loaded = [served for status in chosen if (served := self.served(status)) is not None]
        if not loaded:
            raise NoEngineReady("no model is loaded" if model is None else f"model {model} is not loaded")
        having = [served for served in loaded if device is None or device in served.devices]
        return [engine for served in having or loaded for engine in served.router.select(device)]

    async def serving(self, chosen: ChosenModel, seconds: float) -> tuple[ChosenModel, ServedModel]:
        """Return the chosen model with its engines and its tokenizer. A model that is loaded on demand is loaded first,
        if it is not loaded; this may take up to `seconds`.

        After a wait, the model and the adapter are chosen again, because the adapter may have been unloaded meanwhile.
        Raises QueueFull if too many requests wait for the model already, NoEngineReady, ModelsBusy or ModelTooLarge if
        the model is not loaded in time, and ModelNotFound if it was removed.
        """
        self._update()
        status = chosen.about
        served = self.served(status)
        is_expected = status.on_demand and self.state(status) != ModelState.FAILED
        if served is not None and status.state != ModelState.UNLOADING and (served.takes_work or not is_expected):
            return chosen, served
        with self._waiting_for(status.name):
            served = await self.loaded(status.name, seconds)
        return self.choose(chosen.id), served

    async def loaded(self, name: str, seconds: float) -> ServedModel:
        """Have the model with the name `name` loaded, and return it once it is loaded or has failed to load. The
        supervisor is asked again every second, because other models may occupy the memory.

        Raises ModelTooLarge if there is too little memory for the model even without any other model. Raises ModelsBusy
        if there is too little memory besides models that cannot be unloaded, or if requests use the other models during
        all of `seconds`. Raises NoEngineReady if the model is still being loaded after `seconds`, and ModelNotFound if
        it is removed.
        """
        began = time.monotonic()
        last_asked, has_asked = began - _LOAD_REQUEST_INTERVAL, False
        while True:
            self._update()
            status = self.find(name)
            served = self.served(status)
            if served is not None and self.state(status) in (ModelState.FAILED, ModelState.READY):
                return served
            now = time.monotonic()
            if status.is_too_large and has_asked:
                raise ModelTooLarge(status.shortage)
            waited = now - began
            is_short = bool(status.shortage) and waited >= PATIENCE
            if status.state == ModelState.UNLOADED and (is_short or waited >= seconds):
                limit = status.shortage or "GENAI_MAX_MODELS"
                raise ModelsBusy(f"model {name} has not been loaded for {waited:.0f} s ({limit})", retry_after=5)
            if waited >= seconds:
                raise NoEngineReady(f"model {name} is still {status.state}")
            if (
                status.state in (ModelState.UNLOADED, ModelState.UNLOADING)
                and now - last_asked >= _LOAD_REQUEST_INTERVAL
            ):
                last_asked, has_asked = now, True
                await self.command(WantModel(name))
            await asyncio.sleep(_UPDATE_INTERVAL / 2)

    async def loads(self) -> AsyncIterator[ServedModel]:
        """Yield each model as soon as this process can send it requests, and again whenever it has been loaded again.
        Never ends.
        """
        previous: set[ServedModel] = set()
        while True:
            ready = {served for served in self._served.values() if served.takes_work}
            for served in ready - previous:
                yield served
            previous = ready
            await asyncio.sleep(_UPDATE_INTERVAL)

    async def gone(self, status: ModelStatus) -> None:
        """Wait until the model with this status has been removed and its memory is free."""
        while True:
            if all(other.serial != status.serial for other in self.statuses()):
                return
            await self._supervisor.changed()

    async def command(self, command: Command) -> None:
        """Send a command to the supervisor, such as one to load a model, and wait for its reply. Raises the error with
        which the supervisor replies.
        """
        await self._supervisor.command(command)

    @contextlib.contextmanager
    def _waiting_for(self, name: str) -> Iterator[None]:
        """Context manager in which a request counts as waiting for the model `name` to be loaded. Raises QueueFull if
        as many requests as allowed wait for this model already.
        """
        if self._waiting[name] >= self._max_waiting:
            raise QueueFull(f"{self._max_waiting} requests wait for model {name} to be loaded (GENAI_MAX_QUEUE)")
        self._waiting[name] += 1
        try:
            yield
        finally:
            self._waiting[name] -= 1

    def _update(self) -> None:
        """Connect to the models that the supervisor now reports as loaded or being loaded, and disconnect from all
        others.
        """
        loaded = {status.serial: status for status in self.statuses() if status.state != ModelState.UNLOADED}
        for serial in self._served.keys() - loaded.keys():
            task = asyncio.create_task(self._served.pop(serial).leave())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for serial in loaded.keys() - self._served.keys():
            self._served[serial] = ServedModel(
                loaded[serial], lambda: self._supervisor.status, self._load_text, self._fingerprint
            )

    async def _follow(self) -> None:
        while True:
            try:
                self._update()
            except Exception:  # whatever it was, the next change may succeed
                log.exception("following the supervisor")
            await self._supervisor.changed()


def _forms(name: str | None) -> list[str]:
    """Return the forms of a model's name under which it is looked up, in order and without duplicates: as given, and as
    `plain_name` shortens it. Empty for None.
    """
    return [] if name is None else list(dict.fromkeys((name, plain_name(name))))


def _named(models: Sequence[ModelStatus], name: str) -> ModelStatus | None:
    """Return the first of `models` that has exactly `name` as its name or alias; None if there is none.

    The name FORMER_DEFAULT, which clients of old versions of the server send, stands for the first model, unless a
    model has this name, or a model has the alias `*`, which takes any name.
    """
    match = next((status for status in models if name == status.name or name in status.aliases), None)
    if match is None and name == FORMER_DEFAULT and not any(ANY_NAME in status.aliases for status in models):
        return next(iter(models), None)
    return match


@dataclass(frozen=True)
class PullProgress:
    """How much of one file of a model has been downloaded from a hub. A download passes it to its callback."""

    name: str
    # `sha256:…` or `git:…`.
    digest: str
    # In bytes.
    total: int
    completed: int


# Downloads the model in a folder of a repository ("" for its only model) and returns its directory. Calls the callback
# with progress; an exception raised there stops the download. Blocks. Raises PullFailed. `cli/serve/loaders.py` passes
# in the implementation.
PullModel = Callable[[str, str, Callable[[PullProgress], None]], Path]


@dataclass(frozen=True)
class Variant:
    """One of the models in a repository of a hub, such as the variant for one kind of device, with its size and the
    memory that it takes. Used to choose what to download.
    """

    # "" for the repository's root.
    folder: str
    # In bytes.
    size: int
    # Whether it is the best variant for the server's device, by its folder's name; None where that names no device.
    for_device: bool | None
    # Bytes that its weights take once they are loaded, beside its context.
    memory: int


@dataclass(frozen=True)
class StoredModel:
    """A model directory in GENAI_MODELS_DIR, the directory for downloaded models: its path, its size, and where the
    model comes from.
    """

    path: Path
    # In bytes.
    size: int
    # The repository or directory that it comes from, with `:FOLDER` for one of several models; "" if unknown.
    source: str


@dataclass(frozen=True)
class ModelStore:
    """The functions with which routes list the models in GENAI_MODELS_DIR, the directory for downloaded models, and
    download others from a hub. All functions block.
    """

    directory: Path
    pull: PullModel
    # The models in a repository. Raises PullFailed.
    variants: Callable[[str], list[Variant]]
    # Bytes of the memory in which models are loaded; None for a device with a memory of its own.
    memory: int | None
    # Keyed by name.
    stored: Callable[[], list[StoredModel]]
