"""The results as a table, and its place in docs/compatibility.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from _models.table import table

from .client import Result

BEGIN, END = "<!-- scripts/check_clients.py --write: begin -->\n", "<!-- end -->\n"
_HEAD = ["client", "version", "what was run", "run", "passed", "failed", "why"]
_LONGEST = 240


def rows(results: Sequence[Result]) -> list[list[str]]:
    """A row for each client, below the head."""
    return [_HEAD, *map(_row, results)]


def _row(result: Result) -> list[str]:
    if result.missing:
        return [result.name, result.version or "–", "–", "–", "–", "–", _cell(f"not run: {result.missing}")]
    failed = result.failed
    names = ", ".join(dict.fromkeys(check.name for check in result.checks))
    why = "; ".join(f"{check.name}: {check.why}" for check in failed)
    counts = [len(result.checks), len(result.checks) - len(failed), len(failed)]
    return [result.name, result.version, _cell(names), *map(str, counts), _cell(why)]


def _cell(text: str) -> str:
    """One line without what would end a cell, and not too long."""
    line = " ".join(text.replace("|", "/").replace("<", "&lt;").split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def write(page: Path, results: Sequence[Result]) -> None:
    """Put the results into the table between the marks of a page. Rows of other clients stay."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    old, _, after = rest.partition(END)
    found = {result.name: _row(result) for result in results}
    kept = [line.strip("| ").split(" | ") for line in old.strip().splitlines()[2:]]
    body = [found.pop(row[0]) if row[0] in found else [*row, ""][: len(_HEAD)] for row in kept]
    body += found.values()
    page.write_text(f"{before}{BEGIN}{table([_HEAD, *body], markdown=True)}\n{END}{after}", encoding="utf-8")
