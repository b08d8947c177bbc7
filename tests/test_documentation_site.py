"""`./scripts/docs` builds a site of all pages, with a search, in which every link and anchor leads somewhere."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from _docs.build_site import ROOT, assemble, navigation, reachable

pytestmark = pytest.mark.skipif(find_spec("zensical") is None, reason="needs the extra docs (./scripts/install docs)")


def run(*command: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site") / "site"
    done = run(str(ROOT / "scripts" / "_docs" / "build_site.py"), str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder


def test_every_page_of_the_docs_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(reachable())
    folders = [page.parent if page.name == "README.md" else page.with_suffix("") for page in pages]
    assert [folder for folder in folders if not (site / folder / "index.html").is_file()] == []


def test_the_search_has_all_pages(site: Path) -> None:
    text = (site / "search.json").read_text(encoding="utf-8")
    assert "Speculative decoding" in text
    assert "docs/guides/offline/" in text


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    for page in (site / "index.html", site / "docs" / "api" / "index.html"):
        text = page.read_text(encoding="utf-8")
        assert 'src="http' not in text
        assert 'rel="stylesheet" href="http' not in text


@pytest.mark.parametrize("target", ["no-page.md", "keys.md#no-heading"])
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path, target: str) -> None:
    assemble(tmp_path)
    with (tmp_path / "pages" / "docs" / "files.md").open("a", encoding="utf-8") as page:
        page.write(f"\n[Somewhere]({target})\n")
    assert run("-m", "zensical", "build", "--strict", cwd=tmp_path).returncode != 0


def test_the_navigation_is_that_of_the_index() -> None:
    assert [heading for section in navigation() for heading in section][:2] == ["All pages", "Guides"]
    guides = navigation()[1]["Guides"]
    assert isinstance(guides, list)
    assert len(guides) == len([*(ROOT / "docs" / "guides").glob("*.md")])
