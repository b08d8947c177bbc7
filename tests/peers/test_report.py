"""The table of several servers, and differences that make their figures incomparable."""

from pathlib import Path

import pytest
from _models.table import table
from _peers.report import complaints, rows, save_plot

from genai_server.tools.bench.measurement import Case, Measurement, summarize
from genai_server.tools.bench.statistics import Figures

COLD, SHARED = "sweep", "shared prefix"


def figures(rate: float, prompt: int = 64, output: int = 8) -> Figures:
    return {"tokens_per_second": rate, "ttft_p50": 1 / rate, "prompt_tokens": prompt, "output_tokens": output}


def measured(target: str, name: str, streams: int, found: Figures, errors: tuple[str, ...] = ()) -> Measurement:
    return Measurement(target, Case(name, streams, 64, 8), 0, found, 4, errors)


BOTH = [
    measured("a", SHARED, 1, figures(200)),
    measured("a", COLD, 1, figures(20)),
    measured("a", COLD, 16, figures(1234)),
    measured("b", COLD, 1, figures(10)),
]


def test_table_has_servers_in_rows_and_clients_in_columns() -> None:
    head, *body = rows(summarize(BOTH), {"a": "int4", "b": "bfloat16"}, {})
    assert head[4:] == ["tokens/s, 1 client", "tokens/s, 16 clients", "TTFT ms, 1 client", "TTFT ms, 16 clients"]
    assert body == [
        ["64", "new", "a", "int4", "20", "1,234", "50", "0.81"],
        ["64", "new", "b", "bfloat16", "10", "–", "100", "–"],
        ["64", "cached", "a", "int4", "200", "–", "5", "–"],
        ["64", "cached", "b", "bfloat16", "–", "–", "–", "–"],
    ]


def test_unmeasured_server_is_listed_with_the_reason() -> None:
    found = rows(summarize(BOTH), {"a": "int4", "b": "bfloat16"}, {"c": "no\ncompiler | none"})
    assert found[-1][2:5] == ["c", "not measured: no compiler / none", "–"]
    assert "not measured" in table(rows([], {}, {"c": "reason"}), markdown=True)


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (measured("b", COLD, 1, figures(10, prompt=65)), "prompt_tokens differ: {'a': 64, 'b': 65}"),
        (measured("b", COLD, 1, figures(10, output=7)), "output_tokens differ: {'a': 8, 'b': 7}"),
        (measured("b", COLD, 1, figures(10), errors=("500",)), "1 requests failed: 500"),
    ],
)
def test_servers_that_answered_otherwise_are_not_comparable(other: Measurement, complaint: str) -> None:
    (found,) = complaints(summarize([*BOTH[:3], other]))
    assert complaint in found


def test_equal_lengths_are_comparable() -> None:
    assert complaints(summarize(BOTH)) == []


def test_the_plot_shows_each_server(tmp_path: Path) -> None:
    save_plot(summarize(BOTH), tmp_path / "peers.svg")
    assert "<svg" in (tmp_path / "peers.svg").read_text(encoding="utf-8")
