"""Commands to the supervisor over a real socket."""

from collections.abc import Iterator
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from genai_server.engines.board import Board, write_board
from genai_server.engines.control import Command, Control, LoadModel, SetAlias, WantModel, send_command
from genai_server.errors import ModelNotFound, NoEngineReady


@pytest.fixture
def obeyed() -> list[Command]:
    return []


@pytest.fixture
def control(tmp_path: Path, obeyed: list[Command]) -> Iterator[Control]:
    def obey(command: Command) -> None:
        if command == WantModel("missing"):
            raise ModelNotFound("no model 'missing' is served", param="name")
        obeyed.append(command)

    control = Control(tmp_path, "secret", obey)
    write_board(tmp_path, Board("secret", [], [], control.address))
    yield control
    control.close()


def test_a_command_is_obeyed_before_its_sender_goes_on(tmp_path: Path, control: Control, obeyed: list[Command]) -> None:
    for command in (LoadModel("a", "/é", ["cpu"]), SetAlias("x", None)):
        send_command(tmp_path, command)
        assert obeyed[-1] == command


def test_what_speaks_against_it_is_raised_where_it_was_sent(tmp_path: Path, control: Control) -> None:
    with pytest.raises(ModelNotFound, match="no model 'missing' is served") as raised:
        send_command(tmp_path, WantModel("missing"))
    assert raised.value.param == "name"


def test_who_does_not_know_the_secret_is_not_heard(tmp_path: Path, control: Control, obeyed: list[Command]) -> None:
    write_board(tmp_path, Board("guess", [], [], control.address))
    with pytest.raises(NoEngineReady):
        send_command(tmp_path, WantModel("a"))
    assert obeyed == []
    write_board(tmp_path, Board("secret", [], [], control.address))
    send_command(tmp_path, WantModel("a"))
    assert obeyed == [WantModel("a")]


def test_closing_does_not_wait_for_a_listener_that_has_left(control: Control) -> None:
    control._closing.set()
    Client(control.address).close()
    control._thread.join(10)
    control.close()
    assert not control._thread.is_alive()


def test_a_supervisor_that_has_left_takes_no_command(tmp_path: Path, control: Control) -> None:
    control.close()
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(NoEngineReady):
            send_command(folder, WantModel("a"))
