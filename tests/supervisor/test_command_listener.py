"""Commands to the supervisor over a real socket."""

from collections.abc import Iterator
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from genai_server.errors import ConfigurationError, ModelNotFound, NoEngineReady
from genai_server.messages.commands import Command, LoadModel, SetAlias, WantModel, send_command
from genai_server.messages.status_file import ServerStatus, read_status_file, write_status_file
from genai_server.supervisor.command_listener import CommandListener


@pytest.fixture
def obeyed() -> list[Command]:
    return []


@pytest.fixture
def listener(tmp_path: Path, obeyed: list[Command]) -> Iterator[CommandListener]:
    def execute(command: Command) -> None:
        if command == WantModel("missing"):
            raise ModelNotFound("no model 'missing' is served", param="name")
        if command == WantModel("broken"):
            raise ValueError("embedded null byte")
        obeyed.append(command)

    listener = CommandListener(tmp_path, "secret", execute)
    write_status_file(tmp_path, ServerStatus("secret", [], [], listener.address))
    yield listener
    listener.close()


def test_command_is_executed_before_its_sender_continues(
    tmp_path: Path, listener: CommandListener, obeyed: list[Command]
) -> None:
    for command in (LoadModel("a", "/é", ["cpu"]), SetAlias("x", None)):
        send_command(read_status_file(tmp_path), command)
        assert obeyed[-1] == command


def test_refusal_of_a_command_is_raised_at_the_sender(tmp_path: Path, listener: CommandListener) -> None:
    with pytest.raises(ModelNotFound, match="no model 'missing' is served") as raised:
        send_command(read_status_file(tmp_path), WantModel("missing"))
    assert raised.value.param == "name"


def test_unexpected_exception_is_replied_and_listening_continues(
    tmp_path: Path, listener: CommandListener, obeyed: list[Command]
) -> None:
    with pytest.raises(ConfigurationError, match="ValueError: embedded null byte"):
        send_command(read_status_file(tmp_path), WantModel("broken"))
    send_command(read_status_file(tmp_path), WantModel("a"))
    assert obeyed == [WantModel("a")]


def test_command_without_the_secret_is_ignored(
    tmp_path: Path, listener: CommandListener, obeyed: list[Command]
) -> None:
    write_status_file(tmp_path, ServerStatus("guess", [], [], listener.address))
    with pytest.raises(NoEngineReady):
        send_command(read_status_file(tmp_path), WantModel("a"))
    assert obeyed == []
    write_status_file(tmp_path, ServerStatus("secret", [], [], listener.address))
    send_command(read_status_file(tmp_path), WantModel("a"))
    assert obeyed == [WantModel("a")]


def test_closing_does_not_wait_for_an_ended_listener(listener: CommandListener) -> None:
    listener._closing.set()
    Client(listener.address).close()
    listener._thread.join(90)
    listener.close()
    assert not listener._thread.is_alive()


def test_stopped_supervisor_accepts_no_command(tmp_path: Path, listener: CommandListener) -> None:
    listener.close()
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(NoEngineReady):
            send_command(read_status_file(folder), WantModel("a"))
