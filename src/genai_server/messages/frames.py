"""The base of all protocols between processes of the server: frames that carry messages (`encode_frame`,
`FrameDecoder`), a socket connection that receives them (`connect`), and the message with which a process reports an
error (`ErrorInfo`).

A frame is a four-byte big-endian length and a MessagePack list of messages. Nothing is pickled.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from genai_server.errors import ALL_ERRORS, GenaiServerError, InvalidField

MAX_FRAME_BYTES = 64 * 1024 * 1024
_PREFIX_BYTES = 4
_BY_CODE = {error.code: error for error in ALL_ERRORS}


def encode_frame(messages: Sequence[Struct]) -> bytes:
    """Return messages encoded as one frame: a four-byte big-endian length and a MessagePack list."""
    body = msgspec.msgpack.encode(messages)
    return len(body).to_bytes(_PREFIX_BYTES, "big") + body


M = TypeVar("M")


class FrameDecoder(Generic[M]):
    """Decodes a stream of bytes that consists of frames into messages. The bytes may arrive split at any point: the
    decoder keeps an incomplete frame until the rest of the frame has arrived. Each connection has its own decoder.
    """

    def __init__(self, decoder: "msgspec.msgpack.Decoder[list[M]]", max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[M]:
        """Take `data`, the next bytes of the stream, and return the messages that are complete with them.

        Raises msgspec.DecodeError if the bytes are not a valid frame, or if a frame is longer than the decoder's limit
        in bytes.
        """
        if not self._buffer and len(data) >= _PREFIX_BYTES:
            size = int.from_bytes(data[:_PREFIX_BYTES], "big")
            if len(data) == _PREFIX_BYTES + size <= _PREFIX_BYTES + self.max_bytes:  # most frames arrive like this
                yield from self._decoder.decode(memoryview(data)[_PREFIX_BYTES:])
                return
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


class MessageConnection(asyncio.Protocol, Generic[M]):
    """An asyncio protocol that receives frames from another process, and passes each complete message to the function
    `receive` at once, without waking a task.

    The future `ended` completes when the connection has ended. It raises the error that ended the connection: an error
    of the socket, an error that `receive` raised, or msgspec.DecodeError for data that is not a frame.
    """

    def __init__(self, decoder: FrameDecoder[M], receive: Callable[[M], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receive = receive
        self._decoder = decoder

    def data_received(self, data: bytes) -> None:
        """Decode received bytes and pass the messages that are complete to `receive`. Called by asyncio."""
        try:
            for message in self._decoder.feed(data):
                self._receive(message)
        except Exception as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Complete the future `ended`. Called by asyncio when the connection has been closed."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


async def connect(
    address: str, decoder: FrameDecoder[M], receive: Callable[[M], None]
) -> tuple[asyncio.WriteTransport, MessageConnection[M]]:
    """Connect to another process of the server, and return the transport for writing and the connection. `address` is
    the path of a Unix socket, or host:port.

    `decoder` decodes the received bytes; each message is passed to `receive`. Raises OSError if the connection cannot
    be made.
    """
    loop = asyncio.get_running_loop()
    if sys.platform != "win32" and "/" in address:
        transport, connection = await loop.create_unix_connection(lambda: MessageConnection(decoder, receive), address)
    else:
        host, _, port = address.rpartition(":")
        transport, connection = await loop.create_connection(
            lambda: MessageConnection(decoder, receive), host, int(port)
        )
    return cast(asyncio.WriteTransport, transport), connection


class ErrorInfo(Struct, frozen=True):
    """An error as one process of the server reports it to another: the error's code and message, the request's field at
    fault, and after how many seconds a retry may succeed. It takes the place of a pickled exception.
    """

    # Names a class of errors.py.
    code: str
    # The rule, for an InvalidField, whose sentence the receiver makes.
    message: str
    # The request's field at fault, if one is.
    param: str | None = None
    # Seconds after which the same request may succeed; None if waiting does not help.
    retry_after: int | None = None

    @classmethod
    def from_error(cls, error: GenaiServerError) -> "ErrorInfo":
        """Return the message that reports the exception `error` to another process."""
        if isinstance(error, InvalidField):
            return cls(error.code, error.sentence(None, error.other, error.given), error.param)
        return cls(error.code, error.message, error.param, error.retry_after)

    def to_error(self) -> GenaiServerError:
        """Return the reported error as an exception of the class with this code; a GenaiServerError if no class has the
        code.
        """
        error = _BY_CODE.get(self.code, GenaiServerError)
        if issubclass(error, InvalidField):
            return error(self.param, self.message)
        return error(self.message, param=self.param, retry_after=self.retry_after)
