"""The documentation as a site: the pages that README leads to, as they are, with the navigation of docs/README.md.

It is for a web server: from files Zensical's search needs a script of another host.

usage: build_site.py FOLDER      the folder is made anew
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INDEX = Path("docs/README.md")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)[^)]*\)")
_CONFIGURATION = Path(__file__).with_name("zensical.toml")


def main() -> int:
    """Build into the folder of the command line; returns the exit status."""
    (folder,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        assemble(Path(work))
        done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=work, check=False)
        if done.returncode:
            return done.returncode
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(Path(work) / "site", folder)
    return 0


def assemble(work: Path) -> None:
    """Write what Zensical builds from: the pages and the files that they link to, and the configuration."""
    for path in reachable():
        (work / "pages" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, work / "pages" / path)
    text = _CONFIGURATION.read_text(encoding="utf-8")
    text = text.replace('"NAVIGATION"', _as_toml([{"Start": "README.md"}, *navigation()]))
    (work / "zensical.toml").write_text(text, encoding="utf-8")


def reachable() -> list[Path]:
    """README, and the files that links lead to from there, relative to the repository."""
    found, new = {Path("README.md")}, [Path("README.md")]
    while new:
        path = new.pop()
        if path.suffix == ".md":
            linked = set(_links(path)) - found
            found |= linked
            new += linked
    return sorted(found)


def navigation() -> list[dict[str, object]]:
    """The sections of docs/README.md, with the pages that each one lists, by their titles."""
    sections = re.split(r"^## ", (ROOT / INDEX).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    shown: list[dict[str, object]] = [{"All pages": str(INDEX)}]
    for section in sections:
        heading, _, text = section.partition("\n")
        pages = [path for path in _links_of(text, INDEX) if path.suffix == ".md"]
        shown.append({heading: [{_title(path): path.as_posix()} for path in pages]})
    return shown


def _links(path: Path) -> Iterator[Path]:
    return _links_of((ROOT / path).read_text(encoding="utf-8"), path)


def _links_of(text: str, page: Path) -> Iterator[Path]:
    for target in _LINK.findall(text):
        yield (ROOT / page.parent / target).resolve().relative_to(ROOT)


def _title(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").replace("`", "")


def _as_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_as_toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
