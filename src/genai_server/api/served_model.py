"""A loaded model as this API process serves it: the clients of its engines, and its text side."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from genai_server.engine_client.router import Router
from genai_server.errors import ConfigurationError, NoEngineReady
from genai_server.messages.status_file import ModelStatus, StatusFileReader
from genai_server.text.codec import TextCodec

log = logging.getLogger(__name__)
# Checks a model directory and reads its text side for each of the devices. The last argument is a chat template that
# replaces the model's own, or "". Raises ConfigurationError.
LoadText = Callable[[str, Sequence[str], str], Mapping[str, TextCodec]]


class ServedModel:
    """Attaches to the engines and reads the text side in a thread once it is made. Owned by the event loop."""

    def __init__(self, about: ModelStatus, status_file: StatusFileReader, load_text: LoadText) -> None:
        self.name = about.name
        self.devices = about.devices
        self.router = Router(about.devices, status_file, about.name, about.serial)
        self.error: str | None = None
        self._path = about.path
        self._chat_template = about.chat_template
        self._codecs: Mapping[str, TextCodec] = {}
        self._reading = asyncio.create_task(self._read_text(load_text))
        self._attached = asyncio.create_task(self._stay_attached())

    @property
    def is_readable(self) -> bool:
        """Whether the text side has been read."""
        return bool(self._codecs)

    @property
    def takes_work(self) -> bool:
        """Whether requests can be sent to an engine."""
        return self.is_readable and any(engine.is_connected for engine in self.router.engines.values())

    @property
    def codec(self) -> TextCodec:
        """The text side of any device: all run the same model. Raises NoEngineReady."""
        return self.codec_of(self.devices[0])

    def codec_of(self, device: str) -> TextCodec:
        """The text side for one device. Raises NoEngineReady before it is read, and if it cannot be."""
        if not self._codecs:
            raise NoEngineReady(f"the text side of model {self.name} {self.error or 'is still being read'}")
        return self._codecs[device]

    async def read(self) -> None:
        """Wait until the text side is read, or cannot be."""
        await asyncio.shield(self._reading)

    async def leave(self) -> None:
        """Detach from the engines: this process's requests there fail."""
        self._attached.cancel()
        self._reading.cancel()
        await asyncio.gather(self._attached, self._reading, return_exceptions=True)

    def close(self) -> None:
        """Free the text side, at the end of the server."""
        for codec in self._codecs.values():
            codec.close()

    async def _read_text(self, load_text: LoadText) -> None:
        try:
            self._codecs = await asyncio.to_thread(load_text, self._path, self.devices, self._chat_template)
        except ConfigurationError as error:
            self.error = f"cannot be read: {error.message}"
            log.error("the text side of model %s %s", self.name, self.error)

    async def _stay_attached(self) -> None:
        async with self.router.attached():
            await asyncio.Event().wait()
