"""Loads what an API process needs besides its app: the models' text codecs (tokenizers and chat templates;
`text_loader`), models from a hub (`model_store`), and the exporter of OpenTelemetry traces (`load_traces`).
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genai_server.cli.pull_command import Source, checked_name, in_folder, kind_of, pull
from genai_server.config.settings import Settings
from genai_server.engine.model.files import check_model_directory
from genai_server.errors import ConfigurationError, PullFailed
from genai_server.generation.catalog import ModelStore, PullProgress, StoredModel, Variant
from genai_server.hub import store
from genai_server.hub.client import Hub
from genai_server.hub.repository import models_of, suitable
from genai_server.model_files.model_memory import LOADED, RUNTIME
from genai_server.options.providers import CPU, is_scripted
from genai_server.system.installation import this_installation
from genai_server.system.resources import total_memory
from genai_server.text.codec import TextCodec, load_text_codec

if TYPE_CHECKING:
    from genai_server.generation.catalog import LoadText
    from genai_server.http.telemetry.traces import Traces

_LIBRARY = "onnxruntime_genai"
# Most characters of a prompt for each byte of the largest body. Templates repeat some text and expand JSON.
_LONGEST_PROMPT = 4


def check_library() -> None:
    """Raise ConfigurationError if onnxruntime-genai is not installed."""
    if importlib.util.find_spec(_LIBRARY) is None:
        remedy = f"{this_installation().command('cpu')} (or cuda or winml for cpu: exactly one of them)"
        raise ConfigurationError(f"onnxruntime-genai is not installed; install it: {remedy}")


def text_loader(settings: Settings) -> "LoadText":
    """Return a function that checks a model directory and loads the model's text codec (tokenizer and chat template).
    The function takes the directory, the devices and a chat template to use in place of the model's own ("" for none),
    and returns the codec by device.

    Devices of one kind share a codec: the model's own, or that of `scripted` devices, which answer without a model. The
    function raises ConfigurationError if onnxruntime-genai is missing, ModelDirectoryError with the name of a faulty
    file, and ChatTemplateError for a faulty chat template.
    """

    def load_text(path: str, devices: Sequence[str], chat_template: str = "") -> Mapping[str, TextCodec]:
        model_dir = Path(path)
        if not all(map(is_scripted, devices)):
            check_library()
            check_model_directory(model_dir)
        device_of_kind = {is_scripted(device): device for device in devices}
        codecs = {
            scripted: load_text_codec(
                model_dir,
                device,
                chat_template=chat_template,
                tool_parser=settings.tool_parser,
                allow_special_tokens=settings.allow_special_tokens,
                max_characters=_LONGEST_PROMPT * settings.max_body_bytes,
            )
            for scripted, device in device_of_kind.items()
        }
        return {device: codecs[is_scripted(device)] for device in devices}

    return load_text


# The text sides that the checks of a start have read, by the model's path and its chat template.
ReadTexts = dict[tuple[str, str], Mapping[str, TextCodec]]


def with_preloaded(texts: ReadTexts, load_text: "LoadText") -> "LoadText":
    """Return a function that loads the text codecs of a model like `load_text`, but at its first call for a model in
    `texts` returns the codecs there, which were loaded before. It removes them from `texts`, so that later calls load
    them again.
    """

    def preloaded_or_loaded(path: str, devices: Sequence[str], chat_template: str = "") -> Mapping[str, TextCodec]:
        codecs = texts.pop((path, chat_template), {})
        return codecs if codecs.keys() == set(devices) else load_text(path, devices, chat_template)

    return preloaded_or_loaded


def model_store(settings: Settings) -> ModelStore:
    """Return the object with which the API lists the models in GENAI_MODELS_DIR and downloads models from a hub. The
    hub's access token is HF_TOKEN or that of `hf auth login`.
    """

    kind = kind_of(settings)

    def pull_model(source: str, folder: str, report: Callable[[PullProgress], None]) -> Path:
        try:
            name = checked_name(source)
            directory = store.place_of(settings.models_path, name).absolute()
            pull(
                Hub(),
                Source(name, in_folder(folder), device=kind),
                directory,
                report=lambda line: None,
                watch=lambda file, size: report(PullProgress(file.shown, file.digest, file.size, size)),
            )
        except ConfigurationError as error:
            raise PullFailed(error.message) from None
        return directory

    def variants(source: str) -> list[Variant]:
        try:
            selections = models_of(Hub().repository(checked_name(source), None))
        except ConfigurationError as error:
            raise PullFailed(error.message) from None
        fitting = suitable(selections, kind)
        return [
            Variant(selection.folder, selection.size, fitting[selection.folder], int(LOADED * selection.size) + RUNTIME)
            for selection in selections
        ]

    def stored() -> list[StoredModel]:
        directories = store.models_in(settings.models_path)
        return [
            StoredModel(path.absolute(), store.size_of(path), _source(store.read_origin(path))) for path in directories
        ]

    memory = total_memory() if kind == CPU else None
    return ModelStore(settings.models_path.absolute(), pull_model, variants, memory, stored)


def _source(origin: store.Origin | None) -> str:
    if origin is None or origin.built:
        return ""
    return f"{origin.source}:{origin.folder}" if origin.folder else origin.source


def load_traces(settings: Settings) -> "Traces | None":
    """Return the exporter of OpenTelemetry traces of requests; None if the settings name no endpoint for them. Raises
    ConfigurationError if OpenTelemetry is not installed.
    """
    if not settings.otlp_endpoint:
        return None
    try:
        from genai_server.http.telemetry.traces import Traces
    except ImportError:
        raise ConfigurationError(
            f"GENAI_OTLP_ENDPOINT={settings.otlp_endpoint}: OpenTelemetry is not installed; install it: "
            f"{this_installation().extra_command('otel')}"
        ) from None
    return Traces(settings.otlp_endpoint)
