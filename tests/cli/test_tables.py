"""Reports in terminals of any width."""

import io

import pytest
from rich.console import Console

from genai_server.cli.tables import print_report
from genai_server.plain_tables import Rows

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


def test_a_wide_terminal_has_a_row_for_each_row() -> None:
    lines = shown(FIGURES, width=200)
    assert len(lines) == 5
    assert lines[1].split()[:3] == ["http://127.0.0.1:8002", "1", "123"]


def test_a_table_of_too_many_figures_is_turned_and_has_them_all() -> None:
    lines = shown(FIGURES, width=80)
    assert lines[0].split() == ["target", *["http://127.0.0.1:8002"] * 3]
    assert [line.split()[0] for line in lines if line.startswith("failed")] == ["failed", "failed"]
    assert sum(line.count("123 (100–150)") for line in lines) == 36


def test_long_name_is_shown_by_its_end() -> None:
    row = next(line for line in shown(NODES, width=60) if "…" in line)
    assert row.startswith("…")
    assert row.split()[0].endswith("and_on_and_on")
    assert row.split()[1:] == ["12", "+3.20"]
