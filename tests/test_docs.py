"""The documents say what the code does: settings, endpoints, links, and every example of the README is run."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genai_server import __version__
from genai_server.cli import main
from genai_server.config import Settings, environment_variable, load_settings, option
from tests.running_server import DEMO, ROOT, RunningServer, clean_environment, run_server

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(
    path for path in ROOT.rglob("*.md") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
EXAMPLES = re.findall(r"```(sh|python)\n(.*?)```\n\n```(?:json|text)\n(.*?)\n```", README, re.DOTALL)


def shown(default: object) -> str:
    """A default as the documents write it."""
    if default is None:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_readme_has_a_row_for_each_setting(name: str) -> None:
    field = Settings.model_fields[name]
    default = f"`{shown(field.default)}` " if field.default not in (None, "") else ""
    row = f"| `{environment_variable(name)}` | `{option(name)}` | {default}| {field.description} |"
    assert row in README


def test_the_readme_has_no_row_for_anything_else() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| `--", README, re.MULTILINE)
    assert rows == [environment_variable(name) for name in Settings.model_fields]


def test_the_example_environment_has_each_setting_with_its_default_and_description() -> None:
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    for name, field in Settings.model_fields.items():
        assert f"# {field.description}\n{environment_variable(name)}={shown(field.default)}\n" in text
    assert len(re.findall(r"^[A-Z_]+=", text, re.MULTILINE)) == len(Settings.model_fields)
    assert load_settings(environ={}, dotenv=ROOT / ".env.example") == load_settings(environ={}, dotenv=None)


def test_the_readme_names_every_endpoint(scripted: RunningServer) -> None:
    paths = scripted.client.get("/openapi.json").json()["paths"]
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    named = set(re.findall(r"`(GET|POST|DELETE) (/[^`]*)`", README)) - {("GET", "/docs"), ("GET", "/openapi.json")}
    assert named == found


def test_the_readme_has_a_row_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    known = re.findall(r"^    ([a-z-]+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    assert len(known) > 3
    assert sorted(known) == sorted(re.findall(r"^\| `genai-server ([a-z-]+)", README, re.MULTILINE))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_and_headings_lead_somewhere(path: Path) -> None:
    for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]*))?\)", path.read_text(encoding="utf-8")):
        file = (path.parent / target) if target else path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_changelog_knows_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text or f"## [{__version__}]" in text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("readme"), "--model-dir", str(DEMO)) as server:
        yield server


def masked(output: str) -> object:
    """What must be the same each time: no ids, no measured numbers, no folders; white space of JSON does not count."""
    output = re.sub(r"req-[0-9a-f]{24}", "req-…", output.strip())
    output = re.sub(r'"[^"]*profiles/cpu"', '"profiles/cpu"', output)
    if not output.startswith("{"):
        return re.sub(r'("[a-z_]+":)[0-9.e-]+', r"\1…", output)

    def without_numbers(value: object) -> object:
        if isinstance(value, dict):
            return {name: without_numbers(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [without_numbers(inner) for inner in value]
        return "…" if isinstance(value, int | float) and not isinstance(value, bool) else value

    return without_numbers(json.loads(output))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize(("language", "code", "expected"), EXAMPLES, ids=lambda text: text.splitlines()[0][:50])
def test_each_example_of_the_readme_does_what_it_shows(
    server: RunningServer, language: str, code: str, expected: str
) -> None:
    command = ["sh", "-c"] if language == "sh" else [sys.executable, "-c"]
    result = subprocess.run(
        [*command, code.replace("http://127.0.0.1:8002", server.url)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert masked(result.stdout) == masked(expected)
