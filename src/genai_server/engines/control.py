"""The supervisor's ear: API processes send it commands, one a connection, over a socket in its folder.

Both sides prove that they know the board's secret before anything is read; what is sent is msgspec's, not pickled.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

import msgspec
from msgspec import Struct

from genai_server.engines.board import read_board
from genai_server.errors import GenaiServerError, NoEngineReady, from_code
from genai_server.generation import Adapter

log = logging.getLogger(__name__)
# Seconds that the supervisor may take to answer; no command waits for an engine.
_PATIENCE = 10.0


class LoadModel(Struct, frozen=True, tag=True):
    """Serve the model in this directory by this name; in place of one that has failed, or that is unloaded."""

    name: str
    path: str
    devices: list[str]


class UnloadModel(Struct, frozen=True, tag=True):
    """Serve it no more: at once for new requests, for running ones after so many seconds at the most."""

    name: str
    timeout: float


class SetAlias(Struct, frozen=True, tag=True):
    """Let a model be known by another name, too; None forgets that name."""

    alias: str
    name: str | None


class WantModel(Struct, frozen=True, tag=True):
    """A request waits for this model; to be said again and again for as long as it does."""

    name: str


class AddAdapter(Struct, frozen=True, tag=True):
    """Let requests choose this adapter of a model; its engines have it."""

    model: str
    adapter: Adapter


class RemoveAdapter(Struct, frozen=True, tag=True):
    """Let no more requests choose the adapter of this id."""

    model: str
    id: str


Command = LoadModel | UnloadModel | SetAlias | WantModel | AddAdapter | RemoveAdapter


class CommandReply(Struct, frozen=True):
    """The supervisor has taken a command, or `code` names the class of errors.py that says why not."""

    code: str = ""
    message: str = ""
    param: str | None = None


class Control:
    """Listens from its making to `close`; `obey` is called in a thread of its own, and raises why not."""

    def __init__(self, folder: Path, secret: str, obey: Callable[[Command], None]) -> None:
        self._secret = secret.encode()
        address = None if sys.platform == "win32" else str(folder / "control.sock")
        self._listener = Listener(address, "AF_PIPE" if sys.platform == "win32" else "AF_UNIX", authkey=self._secret)
        self.address = str(self._listener.address)
        self._obey = obey
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more commands."""
        self._closing.set()
        # Only to wake the thread, and without a word: it may have left meanwhile, and nobody would answer.
        with contextlib.suppress(OSError):
            Client(self.address).close()
        self._thread.join(_PATIENCE)
        self._listener.close()

    def _listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(Command)
        while not self._closing.is_set():
            try:
                with self._listener.accept() as connection:
                    if connection.poll(_PATIENCE) and not self._closing.is_set():
                        connection.send_bytes(msgspec.msgpack.encode(self._reply(decoder, connection.recv_bytes())))
            except (OSError, EOFError, AuthenticationError, msgspec.DecodeError) as error:
                log.debug("a command that was none: %s", error)

    def _reply(self, decoder: "msgspec.msgpack.Decoder[Command]", data: bytes) -> CommandReply:
        try:
            self._obey(decoder.decode(data))
        except GenaiServerError as error:
            return CommandReply(error.code, error.message, error.param)
        return CommandReply()


def send_command(folder: Path, command: Command) -> None:
    """Have the supervisor obey; blocks for a moment. Raises what it says against it, and NoEngineReady."""
    board = read_board(folder)
    try:
        with Client(board.control, authkey=board.secret.encode()) as connection:
            connection.send_bytes(msgspec.msgpack.encode(command))
            if not connection.poll(_PATIENCE):
                raise NoEngineReady(f"the supervisor has not answered for {_PATIENCE:.0f} s")
            reply = msgspec.msgpack.decode(connection.recv_bytes(), type=CommandReply)
    except (OSError, EOFError, AuthenticationError, ValueError) as error:
        raise NoEngineReady(f"the supervisor cannot be reached: {error}") from None
    if reply.code:
        raise from_code(reply.code, reply.message, reply.param)
