"""`./scripts/docs` builds a site of all pages, with a search that works from files."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts._docs.build_site import ROOT, navigation, reachable

pytestmark = pytest.mark.skipif(find_spec("zensical") is None, reason="needs the extra docs (./scripts/install docs)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Zensical ends with a status other than 0 at a link, or an anchor, that leads nowhere."""
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "_docs" / "build_site.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder


def test_every_page_of_the_docs_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(reachable())
    missing = [path for path in pages if not _html(site, path).is_file()]
    assert missing == []


def _html(site: Path, page: Path) -> Path:
    """Where the site has a page: the offline form has no folder for each."""
    return site / (page.parent / "index.html" if page.name == "README.md" else page.with_suffix(".html"))


def test_the_search_has_all_pages_without_a_server(site: Path) -> None:
    """A browser may not fetch files, so the index is a script."""
    (index,) = site.rglob("search.js")
    text = index.read_text(encoding="utf-8")
    assert "Speculative decoding" in text
    assert "docs/guides/offline.html" in text


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    for page in (site / "index.html", site / "docs" / "api.html"):
        text = page.read_text(encoding="utf-8")
        assert 'src="http' not in text
        assert 'rel="stylesheet" href="http' not in text


def test_the_navigation_is_that_of_the_index() -> None:
    headings = [heading for section in navigation() for heading in section]
    assert headings[:2] == ["All pages", "Guides"]
    guides = navigation()[1]["Guides"]
    assert isinstance(guides, list)
    assert len(guides) == len([*(ROOT / "docs" / "guides").glob("*.md")])
