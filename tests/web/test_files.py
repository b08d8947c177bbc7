"""The files of the page and of /docs in the package."""

import gzip
import hashlib
import json
import re

from genai_server.profiles.report_formats import inline_hashes
from genai_server.web.files import API_DOCS, PAGE, content_security_policy, names

WEB = PAGE.parent
PINS = json.loads((WEB / "vendored.json").read_text(encoding="utf-8"))
OWN = [name for name in names(PAGE) if not name.startswith("vendor/")]


def test_each_foreign_file_is_the_one_whose_hash_is_written_down() -> None:
    """If it fails, run scripts/vendor_web.py."""
    for package, pin in PINS.items():
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", pin["integrity"]), package
        for name, digest in pin["files"].items():
            assert hashlib.sha256((WEB / name).read_bytes()).hexdigest() == digest, name


def test_foreign_files_have_hashes_and_licences() -> None:
    pinned = {name for pin in PINS.values() for name in pin["files"]}
    found = {f"static/{name}" for name in names(PAGE)} | {f"api_docs/{name}" for name in names(API_DOCS)}
    own = {f"static/{name}" for name in OWN} | {"api_docs/index.html", "api_docs/start.css", "api_docs/start.js"}
    assert found - own == pinned
    for package, pin in PINS.items():
        license_name = f"{package.removeprefix('@').replace('/', '-')}.LICENSE"
        assert any(name.endswith(license_name) for name in pin["files"])


def test_the_page_loads_below_200_kilobytes_when_compressed() -> None:
    """Modules that are imported when they are needed, and the libraries of `libraries.js`, do not count."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    wanted = [PAGE / "index.html", *(PAGE / name for name in re.findall(r'(?:src|href)="ui/([^"]+)"', page))]
    for path in wanted:
        if path.suffix == ".js":
            found = re.findall(r'^(?:import|export) .*?from "(.+?)";', path.read_text(encoding="utf-8"), re.MULTILINE)
            wanted += [file for name in found if (file := (path.parent / name).resolve()) not in wanted]
    assert len(wanted) > 40
    assert sum(len(gzip.compress(path.read_bytes())) for path in wanted) < 200_000


def test_page_files_load_nothing_foreign_and_write_no_html() -> None:
    for name in OWN:
        text = (PAGE / name).read_text(encoding="utf-8")
        assert not re.search(r"""(src|href|import|fetch\()\s*[=(]?\s*["'`]https?:""", text), name
        assert "innerHTML =" not in text, name
        assert not re.search(r"\beval\(|new Function", text), name


def test_the_page_has_no_inline_script_or_style() -> None:
    for path in (PAGE / "index.html", API_DOCS / "index.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", text), path


def test_content_policy_allows_only_the_profile_reports_scripts() -> None:
    policy = content_security_policy(inline_hashes())
    assert len(inline_hashes()) == 2
    for digest in inline_hashes():
        assert policy.count(f"'{digest}'") == 2
    assert "unsafe" not in policy
