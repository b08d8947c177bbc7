"""The stream between an API process and an engine: what may come on it, and how it is cut.

A frame is a four-byte big-endian length and a MessagePack list of messages; nothing is pickled. `ToEngine` and `ToApi`
are grouped by destination.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from genai_server.messages.admin import AdminCall, AdminReply
from genai_server.messages.figures import Figures, Load
from genai_server.messages.generation import Cancel, Event, Stop, Submit
from genai_server.messages.handshake import Hello, Welcome

MAX_FRAME_BYTES = 64 * 1024 * 1024
_PREFIX_BYTES = 4

ToEngine = Hello | Submit | Cancel | Stop | AdminCall
ToApi = Welcome | Load | Figures | Event | AdminReply


def encode_frame(messages: Sequence[Struct]) -> bytes:
    """The bytes of one frame."""
    body = msgspec.msgpack.encode(messages)
    return len(body).to_bytes(_PREFIX_BYTES, "big") + body


M = TypeVar("M")


class FrameDecoder(Generic[M]):
    """Turns the bytes of a stream, however they are cut, into messages of one destination."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[list[M]]", max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[M]:
        """The messages that `data` completes.

        Raises msgspec.DecodeError if the stream is not one of ours, or if a frame is over `max_bytes`.
        """
        self._buffer += data
        while len(self._buffer) >= _PREFIX_BYTES:
            size = int.from_bytes(self._buffer[:_PREFIX_BYTES], "big")
            if size > self.max_bytes:
                raise msgspec.DecodeError(f"a frame of {size} bytes is over the limit of {self.max_bytes}")
            end = _PREFIX_BYTES + size
            if len(self._buffer) < end:
                return
            messages = self._decoder.decode(bytes(self._buffer[_PREFIX_BYTES:end]))
            del self._buffer[:end]
            yield from messages


def engine_decoder(max_bytes: int = MAX_FRAME_BYTES) -> FrameDecoder[ToEngine]:
    """Decodes what an engine receives."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToEngine]), max_bytes)


def api_decoder() -> FrameDecoder[ToApi]:
    """Decodes what an API process receives."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToApi]))
