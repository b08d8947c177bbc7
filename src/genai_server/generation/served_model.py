"""A loaded model in an API process: the clients of its engines, its tokenizer and chat template, and its
`system_fingerprint`.
"""

import asyncio
import hashlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from genai_server import __version__
from genai_server.config.settings import Settings
from genai_server.config.sources import device_options
from genai_server.engine_client.client import ReadStatus, Router
from genai_server.errors import ConfigurationError, NoEngineReady, in_one_line
from genai_server.messages.generation_request import ModelInfo
from genai_server.messages.server_status import ModelStatus
from genai_server.text.codec import TextCodec

log = logging.getLogger(__name__)

T = TypeVar("T")

# Checks a model directory and reads its text side for each of the devices. The last argument is a chat template that
# replaces the model's own, or "". May raise any exception: a library reads unchecked files.
LoadText = Callable[[str, Sequence[str], str], Mapping[str, TextCodec]]
# Gives a model's `system_fingerprint`. Raises ConfigurationError.
Fingerprint = Callable[[ModelStatus], str]


class ServedModel:
    """A loaded model in an API process: the clients of its engines, and its tokenizer and chat template, which are read
    in a thread. The Catalog creates and closes it. For use by the event loop's thread only.
    """

    def __init__(
        self, about: ModelStatus, read_status: ReadStatus, load_text: LoadText, fingerprint: Fingerprint
    ) -> None:
        self.name = about.name
        self.devices = about.devices
        self.router = Router(about.devices, read_status, about.name, about.serial)
        # Why the text side cannot be read, if it cannot.
        self.error: str | None = None
        # `system_fingerprint` of its answers; "" until the text side is read.
        self.fingerprint = ""
        self._about = about
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
        """Whether the tokenizer has been read and an engine is connected, so that requests can be sent to it."""
        return self.is_readable and any(engine.is_connected for engine in self.router.engines.values())

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of prompt and answer together; None until an engine has reported it."""
        return None if self._shortest is None else self._shortest.max_length

    @property
    def limited_by(self) -> str:
        """What limits `max_length`, in words; "" until an engine has reported it."""
        return "" if self._shortest is None else self._shortest.limited_by

    @property
    def _shortest(self) -> ModelInfo | None:
        """The report of the engine with the lowest `max_length`; None before any report."""
        models = [engine.model for engine in self.router.engines.values()]
        known = [model for model in models if model is not None]
        return min(known, key=lambda model: model.max_length, default=None)

    @property
    def codec(self) -> TextCodec:
        """Tokenizer and template for the first device; all devices run the same model. Raises NoEngineReady."""
        return self.codec_of(self.devices[0])

    def codec_of(self, device: str) -> TextCodec:
        """Tokenizer and template for one device. Raises NoEngineReady until they are read, and if that fails."""
        if not self._codecs:
            raise NoEngineReady(f"the text side of model {self.name} {self.error or 'is still being read'}")
        return self._codecs[device]

    async def read(self) -> None:
        """Wait until the tokenizer and template are read, or have failed to be read."""
        await asyncio.shield(self._reading)

    async def leave(self) -> None:
        """Disconnect from the engines. This process's requests there fail."""
        self._attached.cancel()
        self._reading.cancel()
        await asyncio.gather(self._attached, self._reading, return_exceptions=True)

    def close(self) -> None:
        """Free the tokenizers, at the end of the server."""
        for codec in self._codecs.values():
            codec.close()

    async def _read_text(self, load_text: LoadText, fingerprint: Fingerprint) -> None:
        about = self._about
        try:
            self.fingerprint = await read_files(about.path, partial(fingerprint, about))
            load = partial(load_text, about.path, about.devices, about.chat_template)
            self._codecs = await read_files(about.path, load)
        except ConfigurationError as error:
            self.error = f"cannot be read: {error.message}"
            log.error("the text side of model %s %s", self.name, self.error)


async def read_files(path: str, read: Callable[[], T]) -> T:
    """Call `read`, which reads files of the model in the directory `path`, in a thread. Returns its result.

    Every exception becomes a ConfigurationError. Some could not be passed on: a future does not accept StopIteration,
    and SystemExit would end the event loop.
    """

    def run() -> T:
        try:
            return read()
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


def fingerprint(settings: Settings, about: ModelStatus) -> str:
    """The fingerprint of a model as it is served: `fp_` and a hash of what can affect answers.

    This is the model's files (name, size and modification time), the versions of the server and its libraries, and
    several settings. Slow, so call it in a thread. Raises ConfigurationError.
    """
    paths = [path for path in (*Path(about.path).glob("*"), Path(about.chat_template)) if path.is_file()]
    parts = {
        "files": sorted((path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in paths),
        "libraries": sorted(
            folder.name for path in sys.path for form in _LIBRARIES for folder in Path(path).glob(form)
        ),
        "server": __version__,
        "settings": {name: getattr(settings, name) for name in _SETTINGS},
        "chat_template": about.chat_template,
        "devices": about.devices,
        "options": msgspec.to_builtins(device_options(settings, about.name, about.devices)),
    }
    return f"fp_{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]}"
