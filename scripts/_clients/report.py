"""The results as a table, and its place in docs/evidence/compatibility.md."""

from __future__ import annotations

from collections.abc import Sequence

from .client import Result

# The name of the marks around the table.
MARK = "scripts/check_clients.py --write"
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
    """One short line without characters that would end a cell."""
    line = " ".join(text.replace("|", "/").replace("<", "&lt;").split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def merged(page: str, results: Sequence[Result]) -> list[list[str]]:
    """The table in a page's text, with these results. Rows of other clients stay."""
    old = page.partition(f"<!-- {MARK} -->\n")[2].partition("<!-- end of")[0].strip().splitlines()[2:]
    found = {result.name: _row(result) for result in results}
    kept = [[cell.strip() for cell in line.strip("|").split(" |")] for line in old]
    return [_HEAD, *(found.pop(row[0]) if row[0] in found else row for row in kept), *found.values()]
