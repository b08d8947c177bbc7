"""`genai-server launch`: starts a coding agent with a served model, and says why one cannot be used."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _clients.recipe import PROMPT, section

from genai_server.tools.launch_command import MINIMUM_CONTEXT, PROGRAMS, Target, recipe
from tests.running_server import DEMO, RunningServer, clean_environment, free_port, run_command, run_server

# The context of the lines in docs/guides/coding-agents.md.
ON_THE_PAGE = Target("http://127.0.0.1:8002", "demo", 131_072)
LONG = 40_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose model has tools and a long context, and one for embeddings."""
    models = {"GENAI_MODELS": f"coder={DEMO},vectors={DEMO}-embeddings", "GENAI_DEVICE": "scripted"}
    length = {"GENAI_MAX_LENGTH": str(LONG), "GENAI_MAX_QUEUE_TOKENS": str(2 * LONG)}
    with run_server(tmp_path_factory.mktemp("large"), settings=models | length) as server:
        yield server


@pytest.fixture
def bin(tmp_path: Path) -> Path:
    """A folder for the PATH, in which each agent is a program that writes its arguments and its environment."""
    folder = tmp_path / "bin"
    folder.mkdir()
    said = f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    for program in PROGRAMS.values():
        (folder / program.command).write_text(said, encoding="utf-8")
        (folder / program.command).chmod(0o755)
    return folder


def launch(*arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    return run_command("launch", *arguments, environment=clean_environment(**settings))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_page_has_the_lines_that_the_command_prints(name: str) -> None:
    """scripts/check_clients.py runs the page's lines with the agents themselves."""
    program = PROGRAMS[name]
    shown = recipe(program, ON_THE_PAGE, [*program.ask, PROMPT.strip('"')])
    assert f"```sh\n{shown}```\n" in section(program.title)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_printed_is_what_is_started(large: RunningServer, bin: Path, name: str) -> None:
    more = ("--", "-p", "say 'two' words", "--url")
    started = launch(name, "coder", "--url", large.url, "--api-key", "a-key", *more, PATH=str(bin))
    assert started.returncode == 0, started.stderr
    arguments, environment = json.loads(started.stdout)
    assert arguments[-3:] == ["-p", "say 'two' words", "--url"]
    assert f"coder at {large.url}, {LONG} tokens of context" in started.stderr
    printed = launch(name, "coder", "--url", f"{large.url}/v1", "--api-key", "a-key", "--print", *more)
    assert printed.returncode == 0, printed.stderr
    path = clean_environment(PATH=f"{bin}:/usr/bin:/bin")
    typed = subprocess.run(["sh", "-c", printed.stdout], env=path, capture_output=True, text=True, check=True)
    typed_arguments, typed_environment = json.loads(typed.stdout)
    assert typed_arguments == arguments
    own = PROGRAMS[name].environment(Target(large.url, "coder", LONG, "a-key"))
    assert own.items() <= environment.items() & typed_environment.items()
    assert large.url in f"{arguments} {own}"
    assert "a-key" in f"{own}"


def test_variables_that_would_win_are_left_out(large: RunningServer, bin: Path) -> None:
    started = launch("claude", "--url", large.url, PATH=str(bin), ANTHROPIC_API_KEY="of-another-server")
    _, environment = json.loads(started.stdout)
    assert "ANTHROPIC_API_KEY" not in environment
    assert environment["ANTHROPIC_MODEL"] == "coder"


def test_the_list_says_what_is_installed_and_how_to_install_the_rest(bin: Path) -> None:
    (bin / "codex").unlink()
    listed = launch(PATH=str(bin)).stdout.splitlines()
    found = {line.split()[0]: line for line in listed[2:]}
    assert [*found] == [*PROGRAMS]
    assert str(bin / "claude") in found["claude"]
    assert f"no; {PROGRAMS['codex'].install}" in found["codex"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["qwen"], ["Qwen Code is not installed", PROGRAMS["qwen"].install]),
        (["cluade"], ['PROGRAM="cluade"', "did you mean claude?"]),
        (["xyz"], ["known are claude, codex"]),
        (["claude", "codr", "--print"], ['no model "codr"', "did you mean coder?"]),
        (["claude", "other-name", "--print"], ["it serves coder, vectors"]),
        (["claude", "vectors", "--print"], ["vectors"]),
    ],
    ids=["not installed", "misspelled", "unknown", "misspelled model", "unknown model", "model that does not chat"],
)
def test_a_program_or_model_that_cannot_be_used_is_refused(
    large: RunningServer, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    refused = launch(*arguments, "--url", large.url, PATH=str(tmp_path))
    assert (refused.returncode, [text for text in words if text not in refused.stderr]) == (2, [])


def test_a_server_that_does_not_run_is_named() -> None:
    port = free_port()
    refused = launch("claude", "--print", HOST="127.0.0.1", PORT=str(port))
    assert refused.returncode == 1
    assert f"no server at http://127.0.0.1:{port}; start one with genai-server serve" in refused.stderr


def test_a_short_context_is_refused_unless_it_is_forced(scripted: RunningServer) -> None:
    context = scripted.client.get("/v1/models").json()["data"][0]["max_model_len"]
    assert context < MINIMUM_CONTEXT
    refused = launch("claude", "--url", scripted.url, "--print")
    assert refused.returncode == 2
    says = f"its context is {context} tokens.*an agent needs {MINIMUM_CONTEXT}; --force starts it anyway"
    assert re.search(says, refused.stderr, re.DOTALL)
    forced = launch("claude", "--url", scripted.url, "--print", "--force")
    assert f"export CLAUDE_CODE_MAX_CONTEXT_TOKENS={context}\n" in forced.stdout
