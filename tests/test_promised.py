"""The evidence of promises names the tests that verify them, and each of these tests exists."""

import re
from pathlib import Path

import pytest

from tests.running_server import ROOT

TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "evidence").glob("*.md"))}
# For rows of operations.md without a separate test.
ELSEWHERE = ("the same", "the tests above", "likewise")
BY_CONSTRUCTION = "(by construction"


def references(text: str) -> list[tuple[Path, str]]:
    """Files and functions that a text names; a function without a file belongs to the last file named."""
    found, file = [], ""
    for path, function in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", text):
        file = path or file
        if path or function:
            found.append((ROOT / file, function))
    return found


def tables(text: str, test_column: str) -> list[list[str]]:
    """The cells of this column, a list for each table that has it."""
    found: list[list[str]] = []
    column = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            column = None
        elif column is None:
            column = cells.index(test_column) if test_column in cells else -1
            found += [[]] if column >= 0 else []
        elif column >= 0 and not line.startswith("|-"):
            found[-1].append(cells[column])
    return found


def exists(path: Path, function: str) -> bool:
    """Whether this file of tests exists, with the function if one is named."""
    if not path.is_file():
        return False
    return not function or bool(
        re.search(rf"^(async )?def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_each_test_that_is_named_exists() -> None:
    named = {reference for text in TEXTS.values() for reference in references(text)}
    assert len(named) > 100
    assert [f"{path.relative_to(ROOT)}::{function}" for path, function in named if not exists(path, function)] == []


@pytest.mark.parametrize(("name", "column"), [("compatibility.md", "shown by"), ("operations.md", "test")])
def test_each_row_names_a_test(name: str, column: str) -> None:
    found = tables(TEXTS[name], column)
    assert found
    for rows in found:
        assert references(rows[0])
        assert not [row for row in rows if not (references(row) or row.startswith(ELSEWHERE) or BY_CONSTRUCTION in row)]


def test_promises_are_unique_and_without_history() -> None:
    text = TEXTS["operations.md"]
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ") and "`tests/" in line]
    assert [row for row in set(rows) if rows.count(row) > 1] == []
    assert [row for row in rows if not row.endswith(".")] == []  # nor a row of another branch next to its new form
    assert re.findall(r"\b20\d\d-\d\d-\d\d\b|\bFIGURE\b|\bTODO\b", text) == []


def test_no_test_is_named_in_another_way() -> None:
    """Such as `test_file::test_name`, which nothing checks."""
    for text in TEXTS.values():
        named = re.findall(r"`[^`]*\btest_\w+[^`]*`", text)
        assert [name for name in named if not re.fullmatch(r"`(tests/[\w/]+\.py)?(::\w+)?`", name)] == []
