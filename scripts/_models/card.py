"""The demo model's card and the evaluation table in it."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = Path(__file__).with_name("card.md")
START, END = "<!-- evaluation -->\n", "<!-- end of evaluation -->"


def write_table(card: Path, rows: list[tuple[str, int, int]]) -> None:
    """Put the figures (ability, right answers, questions) between the card's marks."""
    lines = ["| ability | right | asked | share |", "|---|---:|---:|---:|"]
    lines += [f"| {ability} | {right} | {asked} | {100 * right / asked:.0f} % |" for ability, right, asked in rows]
    write_lines(card, lines)


def write_lines(card: Path, lines: list[str]) -> None:
    """Put a table, or whatever else was measured, between the card's marks."""
    head, _, rest = card.read_text(encoding="utf-8").partition(START)
    _, _, tail = rest.partition(END)
    card.write_text(head + START + "\n".join(lines) + "\n" + END + tail, encoding="utf-8")
