"""The command's own parser accepts every command line in the documents; tests/test_scripts.py runs the scripts."""

import argparse
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from genai_server.cli import main
from genai_server.config.sources import load_settings, unknown_variables
from genai_server.errors import ConfigurationError
from tests.running_server import ROOT

SCRIPTS = ROOT / "scripts"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "guides").glob("*.md"),
    *(ROOT / "docs" / "evidence").glob("*.md"),
    ROOT / "models/README.md",
    ROOT / "models/demo/README.md",
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```|(?<=\n\n)((?:^ {4}[^\n]*\n)+)", re.DOTALL | re.MULTILINE)
SHELLS = ("sh", "bash")
OPERATORS = re.compile(r"[();<>|&\n]+")
ASSIGNMENT = re.compile(r"[A-Z_]+=")
OURS = re.compile(r"(?:.*/)?genai-server|(?:\./)?scripts/[a-z]\w*(?:\.(?:py|cmd))?")


class Taken(Exception):
    """A parser has accepted its arguments."""


@pytest.fixture
def parsing_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command raises Taken as soon as its arguments are parsed; those of `serve` must also be valid settings."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(self: argparse.ArgumentParser, arguments: list[str] | None = None) -> None:
        options = vars(parse(self, arguments))
        if "model_dir" in options and "log_level" in options:
            load_settings(options, environ={}, dotenv=None)
        raise Taken

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)
    monkeypatch.syspath_prepend(str(SCRIPTS))


def blocks(text: str) -> Iterator[str]:
    """A document's code blocks that may contain commands, without comments."""
    for language, fenced, indented in BLOCK.findall(text):
        if indented or language in SHELLS:
            code = fenced or re.sub("^    ", "", indented, flags=re.MULTILINE)
            yield re.sub(r"(^|\s)#.*", "", re.sub(r"\\\n\s*", " ", code))


def all_commands(code: str) -> Iterator[tuple[list[str], list[str]]]:
    """The settings and the words of each command."""
    words = shlex.shlex(code, posix=True, punctuation_chars="();<>|&\n")
    words.whitespace, words.whitespace_split, words.commenters = " \t", True, ""
    command: list[str] = []
    for word in [*words, "\n"]:
        if not OPERATORS.fullmatch(word):
            command.append(word)
            continue
        settings = [*takewhile(ASSIGNMENT.match, command)]
        yield settings, command[len(settings) :]
        command = []


def commands(code: str) -> Iterator[list[str]]:
    """The words of each command of this project, with the settings before it."""
    for settings, rest in all_commands(code):
        if rest and Path(rest[0]).name.startswith("python"):
            del rest[0]
        if rest and OURS.fullmatch(rest[0]):
            yield [*settings, *rest]


def unique(lines: Iterable[list[str]]) -> list[list[str]]:
    """Each command line once."""
    return list(map(list, dict.fromkeys(map(tuple, lines))))


def spans(text: str) -> Iterator[str]:
    """Text in backticks outside of code blocks that looks like a command."""
    for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text)):
        if any(OURS.fullmatch(word) for word in span.split()[:2]):
            yield re.sub(r"\s+", " ", span).replace("\\|", "|")


def start(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command. Raises Taken if its arguments are accepted, SystemExit or ConfigurationError if not."""
    settings = dict(word.split("=", 1) for word in words if ASSIGNMENT.match(word))
    program, *arguments = words[len(settings) :]
    name = Path(program).stem
    if unknown := unknown_variables(settings, dotenv=None):
        raise ConfigurationError(f"unknown settings: {', '.join(unknown)}")
    load_settings(environ=settings, dotenv=None)
    if name in ("genai-server", "serve"):
        assert main([*(["serve"] if name == "serve" else []), *arguments]) == 0
    elif name == "install":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
        assert set(arguments) <= known.keys()
    elif name not in ("test", "docs"):  # the arguments of the first are pytest's
        script = SCRIPTS / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        if "import argparse" in script.read_text(encoding="utf-8"):
            runpy.run_path(str(script), run_name="__main__")
        assert not arguments
    raise Taken


def faults(lines: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The command lines that are not accepted, each with the reason."""
    found = []
    for words in lines:
        try:
            start(words, monkeypatch)
        except Taken:
            continue
        except (SystemExit, ConfigurationError, OSError, AssertionError) as error:
            said = capsys.readouterr().err.splitlines()[-1:]
            found.append(f"{' '.join(words)}: {' '.join(said) or repr(error)}")
    return found


@pytest.mark.usefixtures("parsing_only")
def test_every_command_line_of_the_documents_is_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    lines = unique(words for text in texts for code in blocks(text) for words in commands(code))
    assert len(lines) > 40
    assert faults(lines, monkeypatch, capsys) == []
    # A name in a sentence stands for the command; it may lack required arguments.
    named = unique(words for text in texts for code in spans(text) for words in commands(code))
    assert len(named) > 60
    missing = re.compile(r"the following arguments are required: ")
    assert [fault for fault in faults(named, monkeypatch, capsys) if not missing.search(fault)] == []


@pytest.mark.usefixtures("parsing_only")
@pytest.mark.parametrize(
    "line",
    [
        "genai-server serve --modeldir x",
        "PORT=many genai-server serve",
        "GENAI_PROT=1 ./scripts/serve",
        "genai-server nonsense",
        "python scripts/soak.py --hours 1",
        "scripts/nothing.py",
        "./scripts/install nonsense",
    ],
)
def test_invalid_command_line_is_detected(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(faults([*commands(line)], monkeypatch, capsys)) == 1
