"""Sends commands to the supervisor."""

from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import msgspec

from genai_server.errors import NoEngineReady
from genai_server.messages.commands import COMMAND_TIMEOUT, Command, CommandReply
from genai_server.messages.status_file import ServerStatus


def send_command(server_status: ServerStatus, command: Command) -> None:
    """Send a command to this status's supervisor; blocks until it is done.

    Raises the error in the supervisor's reply, and NoEngineReady without a reply.
    """
    try:
        with Client(server_status.control, authkey=server_status.secret.encode()) as connection:
            connection.send_bytes(msgspec.msgpack.encode(command))
            if not connection.poll(COMMAND_TIMEOUT):
                raise NoEngineReady(f"the supervisor has not answered for {COMMAND_TIMEOUT:.0f} s")
            reply = msgspec.msgpack.decode(connection.recv_bytes(), type=CommandReply)
    except (OSError, EOFError, AuthenticationError, ValueError) as error:
        raise NoEngineReady(f"the supervisor cannot be reached: {error}") from None
    if reply.error is not None:
        raise reply.error.to_error()
