"""docs/compatibility.md claims nothing without a test: each one that it names is there."""

import re
from pathlib import Path

import pytest

from tests.running_server import ROOT

TEXT = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


def references(text: str) -> list[tuple[Path, str]]:
    """Files and functions that a text names; a function without a file is in the one named before."""
    found, file = [], ""
    for path, function in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", text):
        file = path or file
        if path or function:
            found.append((ROOT / file, function))
    return found


@pytest.mark.parametrize(("path", "function"), references(TEXT), ids=lambda part: getattr(part, "name", part))
def test_a_test_that_is_named_exists(path: Path, function: str) -> None:
    assert path.is_file()
    if function:
        assert re.search(rf"^(async )?def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_each_row_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith(("| what", "|--"))]
    assert rows
    assert not [row for row in rows if "`tests/" not in row.rsplit("|", 2)[1]]
