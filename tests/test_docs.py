"""The documents match the code: settings, endpoints, commands and links; every example is run."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from genai_server.cli import main
from genai_server.config.setting_form import environment_variable
from genai_server.config.settings import SETTING_GROUPS, Settings
from genai_server.config.sources import load_settings
from tests.running_server import DEMO, ROOT, RunningServer, clean_environment, run_server


def page(name: str) -> str:
    """The text of a document."""
    return (ROOT / name).read_text(encoding="utf-8")


README = page("README.md")
API = page("docs/api.md")
SETTINGS = page("docs/settings.md")
DOCUMENTS = sorted(
    path for path in ROOT.rglob("*.md") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
PACKAGE = ROOT / "src" / "genai_server"
EXAMPLE = re.compile(r"```(sh|python)\n((?:(?!```).)*)```\n\n```(?:json|text)\n(.*?)\n```", re.DOTALL)
# Numbers in answers that are the same each time.
COUNTED = ("input_tokens", "output_tokens", "prompt_tokens", "completion_tokens", "total_tokens")
EXAMPLES = [example for text in (README, API) for example in EXAMPLE.findall(text)]


def shown(default: object) -> str:
    """A default as the documents write it."""
    if default is None:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_settings_page_has_a_row_for_each_setting_and_no_more() -> None:
    """If it fails, run scripts/document_settings.py."""
    rows = re.findall(r"^\| `[A-Z_]+` \|.*", SETTINGS, re.MULTILINE)
    assert rows == [
        f"| `{environment_variable(name)}` | "
        + (f"`{shown(field.default)}` " if (field := Settings.model_fields[name]).default not in (None, "") else "")
        + f"| {field.description} |"
        for names in SETTING_GROUPS.values()
        for name in names
    ]
    assert re.findall(r"^## (.*)$", SETTINGS, re.MULTILINE)[: len(SETTING_GROUPS)] == list(SETTING_GROUPS)


def test_the_page_of_options_matches_the_tables() -> None:
    """If it fails, run scripts/document_settings.py."""
    script = runpy.run_path(str(ROOT / "scripts" / "document_settings.py"))
    page = (ROOT / "docs" / "evidence" / "options.md").read_text(encoding="utf-8")
    assert f"<!-- options -->\n{script['options']()}<!-- end of options -->\n" in page


def test_tests_that_documents_name_exist() -> None:
    missing = []
    for path in (ROOT / "docs").rglob("*.md"):
        file = ""
        for named, function in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", path.read_text(encoding="utf-8")):
            file = named or file  # a function without a file belongs to the last file
            source = ROOT / file
            if (named or function) and not (
                source.is_file() and f"def {function}" in source.read_text(encoding="utf-8")
            ):
                missing.append(f"{path.name}: {file}::{function}")
    assert missing == []


def test_example_environment_has_all_settings_with_defaults() -> None:
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    for name, field in Settings.model_fields.items():
        assert f"# {field.description}\n{environment_variable(name)}={shown(field.default)}\n" in text
    assert len(re.findall(r"^[A-Z_]+=", text, re.MULTILINE)) == len(Settings.model_fields)
    assert load_settings(environ={}, dotenv=ROOT / ".env.example") == load_settings(environ={}, dotenv=None)


def test_the_page_of_the_api_names_every_endpoint(scripted: RunningServer) -> None:
    paths = scripted.client.get("/openapi.json").json()["paths"]
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    named = set(re.findall(r"`(GET|POST|DELETE) (/[^`]*)`", API)) - {("GET", "/docs"), ("GET", "/openapi.json")}
    assert named == found


def test_the_page_of_commands_has_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    known = re.findall(r"^ {2,4}([a-z][a-z-]*)  +\w", capsys.readouterr().out, re.MULTILINE)
    assert len(known) > 3
    assert sorted(known) == sorted(re.findall(r"^\| `genai-server ([a-z-]+)", page("docs/commands.md"), re.MULTILINE))


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings by GitHub's rules."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_files_and_headings_lead_somewhere() -> None:
    dead = []
    for path in DOCUMENTS:
        for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]*))?\)", path.read_text(encoding="utf-8")):
            file = (path.parent / target) if target else path
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(f"{path.relative_to(ROOT)}: {target}#{anchor}")
    assert dead == []


def test_messages_name_existing_pages() -> None:
    """References such as "see docs/settings.md" or "docs/troubleshooting.md"."""
    dead = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"\bdocs/[\w./-]+\.md", text)
        dead += [f"{path.name}: {name}" for name in named if not (ROOT / name).exists()]
    assert dead == []


def test_the_index_leads_to_every_page() -> None:
    assert "(docs/README.md)" in README
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]
    index = page("docs/README.md")
    linked = [path.relative_to(ROOT / "docs").as_posix() for path in pages if path.name != "README.md"]
    assert [name for name in linked if f"({name})" not in index] == []


def test_each_path_of_the_architecture_exists() -> None:
    """Below src/genai_server, or relative to the repository."""
    text = page("docs/architecture.md")
    paths = set(re.findall(r"`([a-z_]+/[\w/]*(?:\.\w+)?|\w+\.py)`", text))
    assert len(paths) > 100
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in (PACKAGE, ROOT))] == []


def test_the_architecture_names_each_package() -> None:
    table = page("docs/architecture.md").partition("### Packages")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))


def test_newest_release_in_the_changelog_is_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?$", text, re.MULTILINE)
    assert sections[0] == ("Unreleased", "")
    releases = [(tuple(map(int, version.split("."))), date) for version, date in sections[1:]]
    assert all(date for _, date in releases)
    assert releases == sorted(releases, reverse=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sections[1][0] == project["version"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    # README's examples name the model that its first command serves.
    options = ("--model-dir", str(DEMO), "--model-aliases", "phi4-mini=demo")
    with run_server(tmp_path_factory.mktemp("examples"), *options) as server:
        yield server


def masked(output: str) -> object:
    """The reproducible part of an output: no ids, measured numbers or folders; white space of JSON does not count.

    Only counts of finished answers are kept of the numbers.
    """
    output = re.sub(r"(req|chatcmpl)-[0-9a-f]{24}", r"\1-…", output.strip())
    output = re.sub(r"fp_[0-9a-f]{12}", "fp_…", output)
    output = re.sub(r'"[^"]*profiles/cpu"', '"profiles/cpu"', output)
    if not output.startswith("{"):
        return re.sub(rf'("(?!(?:{"|".join(COUNTED)})")[a-z_]+":)[0-9.e-]+', r"\1…", output)

    def without_numbers(value: object) -> object:
        if isinstance(value, dict):
            kept = () if "phase" in value else COUNTED
            return {name: inner if name in kept else without_numbers(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [without_numbers(inner) for inner in value]
        return "…" if isinstance(value, int | float) and not isinstance(value, bool) else value

    return without_numbers(json.loads(output))


# Runs programs one after another, so that OpenAI's client is imported once, and prints their outputs.
RUN_ALL = """
import contextlib, io, json, sys
outputs = {}
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {"__name__": "__main__"})
    outputs[code] = output.getvalue()
print(json.dumps(outputs))
"""


def run(*command: str, given: str = "") -> str:
    """The output of a command."""
    environment = clean_environment()
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def for_server(code: str, server: RunningServer) -> str:
    return code.replace("http://127.0.0.1:8002", server.url)


@pytest.fixture(scope="module")
def outputs(server: RunningServer) -> dict[str, str]:
    """The output of each program in Python."""
    programs = [for_server(code, server) for language, code, _ in EXAMPLES if language == "python"]
    found: dict[str, str] = json.loads(run(sys.executable, "-c", RUN_ALL, given=json.dumps(programs)))
    return found


@pytest.mark.parametrize(("language", "code", "expected"), EXAMPLES, ids=lambda text: text.splitlines()[0][:50])
def test_each_example_does_what_it_shows(
    server: RunningServer, outputs: dict[str, str], language: str, code: str, expected: str
) -> None:
    code = for_server(code, server)
    assert masked(run("sh", "-c", code) if language == "sh" else outputs[code]) == masked(expected)
