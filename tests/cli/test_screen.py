"""Standard output to a terminal and elsewhere."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from genai_server.cli.screen import print_report, screen, show
from genai_server.plain_tables import Rows
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


FIGURES: Rows = [
    ["target", "streams", *(f"figure {number}" for number in range(9)), "failed"],
    *(["http://127.0.0.1:8002", str(row), *["123 (100–150)"] * 9, "0/4"] for row in (1, 2, 3, 4)),
]
NODES: Rows = [
    ["node", "calls", "more than usual"],
    ["/model/layers.13/mlp/down_proj/MatMul_Q4_with_a_long_name_that_goes_on_and_on_and_on_and_on", "12", "+3.20"],
]


def shown(*parts: str | Rows, width: int) -> list[str]:
    out = io.StringIO()
    print_report(Console(file=out, width=width, force_terminal=True, color_system=None), parts)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = shown("A sentence of several words which is longer than forty columns.", FIGURES, NODES, width=width)
    assert max(map(len, lines)) <= width


def test_a_table_of_too_many_figures_is_turned_and_has_them_all() -> None:
    wide = shown(FIGURES, width=200)
    assert (len(wide), wide[1].split()[:3]) == (5, ["http://127.0.0.1:8002", "1", "123"])
    lines = shown(FIGURES, width=80)
    assert lines[0].split() == ["target", *["http://127.0.0.1:8002"] * 3]
    assert [line.split()[0] for line in lines if line.startswith("failed")] == ["failed", "failed"]
    assert sum(line.count("123 (100–150)") for line in lines) == 36


def test_long_name_is_shown_by_its_end() -> None:
    row = next(line for line in shown(NODES, width=60) if "…" in line)
    assert row.startswith("…")
    assert row.split()[0].endswith("and_on_and_on")
    assert row.split()[1:] == ["12", "+3.20"]
