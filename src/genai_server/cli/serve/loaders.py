"""What an API process loads as the settings say: the text side of models, and what sends traces."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genai_server.api.catalog import LoadText
from genai_server.config import Settings
from genai_server.engine.model.files import check_model_directory
from genai_server.errors import ConfigurationError
from genai_server.installation import this_installation
from genai_server.text.codec import TextCodec, load_text_codec

if TYPE_CHECKING:
    from genai_server.api.telemetry.traces import Traces

_LIBRARY = "onnxruntime_genai"
# Characters, for each byte that a body may have: templates write some things twice, and JSON longer than it came.
_LONGEST_PROMPT = 4


def check_library() -> None:
    """See that what runs models is installed. Raises ConfigurationError."""
    if importlib.util.find_spec(_LIBRARY) is None:
        remedy = f"{this_installation().command('cpu')} (or cuda, directml or winml for cpu: exactly one of them)"
        raise ConfigurationError(f"onnxruntime-genai is not installed; install it: {remedy}")


def text_loader(settings: Settings) -> LoadText:
    """What checks a model directory and reads its text side for each of some devices.

    It raises ConfigurationError, ModelDirectoryError with the file's name, and ChatTemplateError.
    """

    def load_text(path: str, devices: Sequence[str], chat_template: str = "") -> Mapping[str, TextCodec]:
        model_dir = Path(path)
        if not all(device.startswith("scripted") for device in devices):
            check_library()
            check_model_directory(model_dir)
        return {
            device: load_text_codec(
                model_dir,
                device,
                chat_template=chat_template,
                tool_parser=settings.tool_parser,
                allow_special_tokens=settings.allow_special_tokens,
                max_characters=_LONGEST_PROMPT * settings.max_body_bytes,
            )
            for device in devices
        }

    return load_text


def load_traces(settings: Settings) -> "Traces | None":
    """What sends traces, if they are wanted. Raises ConfigurationError."""
    if not settings.otlp_endpoint:
        return None
    try:
        from genai_server.api.telemetry.traces import Traces
    except ImportError:
        raise ConfigurationError(
            f"GENAI_OTLP_ENDPOINT={settings.otlp_endpoint}: OpenTelemetry is not installed; install it: "
            f"{this_installation().extra_command('otel')}"
        ) from None
    return Traces(settings.otlp_endpoint)
