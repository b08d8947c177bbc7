"""Standard output to a terminal and elsewhere."""

import os
import subprocess
import sys

import pytest

from genai_server.cli.screen import screen, show
from tests.running_server import clean_environment

SCRIPT = "from genai_server.cli.screen import show; show(('ok', 'green'), ' [bold]plain', ' 12')"


def test_output_without_a_terminal_is_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    show(("ok", "green"), " [bold]plain", " 12")
    assert capsys.readouterr().out == "ok [bold]plain 12\n"
    assert screen() is None


@pytest.mark.parametrize(
    ("variables", "shown"),
    [({}, b"\x1b[32mok\x1b[0m [bold]plain 12\r\n"), ({"NO_COLOR": "1"}, b"ok [bold]plain 12\r\n")],
)
def test_a_terminal_has_colours_unless_they_are_unwanted(variables: dict[str, str], shown: bytes) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in clean_environment().items() if name != "NO_COLOR"}
    try:
        subprocess.run(
            [sys.executable, "-c", SCRIPT], stdout=theirs, env=environment | {"TERM": "xterm"} | variables, check=True
        )
        assert os.read(ours, 1000) == shown
    finally:
        os.close(theirs)
        os.close(ours)
