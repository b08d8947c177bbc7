"""Chat templates of published models with conversations as agents and other servers write them, on all APIs.

The templates are part of a package of llama.cpp's sources, which is downloaded once; without it the tests are skipped.
scripts/check_templates.py shows what becomes of each conversation.
"""

from pathlib import Path

import pytest

from scripts._templates.check import check
from scripts._templates.published import NotAvailable, published_templates
from scripts._templates.rendering import usable

# Some of them, by what is special about them.
STRICT_TURNS = "mistralai-Ministral-3-14B-Reasoning-2512"


@pytest.fixture(scope="module")
def templates() -> Path:
    try:
        return published_templates()
    except NotAvailable as error:
        pytest.skip(str(error))


@pytest.mark.timeout(600)
def test_no_history_is_refused_and_no_text_lost_silently(templates: Path) -> None:
    paths = usable(templates)
    assert len(paths) == 66
    faults = {path.stem: found for path in paths if (found := check(path).faults)}
    assert faults == {}
