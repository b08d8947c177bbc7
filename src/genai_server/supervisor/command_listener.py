"""Receives the commands of API processes over a socket in the supervisor's folder, one for each connection."""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

import msgspec

from genai_server.errors import ConfigurationError, GenaiServerError, in_one_line
from genai_server.messages.commands import COMMAND_TIMEOUT, Command, CommandReply
from genai_server.messages.error import ErrorInfo

log = logging.getLogger(__name__)
# Seconds to wait after a failed connection: without free files, all of them fail at once.
_PAUSE = 0.05


class CommandListener:
    """Listens from construction to `close`.

    `execute` is called in a thread of its own; a GenaiServerError that it raises is the reply.
    """

    def __init__(self, folder: Path, secret: str, execute: Callable[[Command], None]) -> None:
        self._secret = secret.encode()
        address = None if sys.platform == "win32" else str(folder / "control.sock")
        self._listener = Listener(address, "AF_PIPE" if sys.platform == "win32" else "AF_UNIX", authkey=self._secret)
        self.address = str(self._listener.address)
        self._execute = execute
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="commands", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop taking commands."""
        self._closing.set()
        # Only to wake the thread. No authentication: if the thread has already ended, nothing would answer.
        with contextlib.suppress(OSError):
            Client(self.address).close()
        self._thread.join(COMMAND_TIMEOUT)
        self._listener.close()

    def _listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(Command)
        while not self._closing.is_set():
            try:
                with self._listener.accept() as connection:
                    if connection.poll(COMMAND_TIMEOUT) and not self._closing.is_set():
                        connection.send_bytes(msgspec.msgpack.encode(self._reply(decoder, connection.recv_bytes())))
            except (OSError, EOFError, AuthenticationError, msgspec.DecodeError) as error:
                log.debug("a connection without a valid command: %s", error)
                self._closing.wait(_PAUSE)

    def _reply(self, decoder: "msgspec.msgpack.Decoder[Command]", data: bytes) -> CommandReply:
        try:
            self._execute(decoder.decode(data))
        except GenaiServerError as error:
            return CommandReply(ErrorInfo.from_error(error))
        except msgspec.DecodeError:
            raise
        except Exception as error:  # the thread must survive for the next command
            log.exception("a command to the supervisor")
            refusal = ConfigurationError(f"the command cannot be carried out: {in_one_line(error)}")
            return CommandReply(ErrorInfo.from_error(refusal))
        return CommandReply()
