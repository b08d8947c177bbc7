"""Commands whose standard streams have other encodings than UTF-8, as real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genai_server.cli.commands import COMMANDS
from tests.running_server import DEMO, ROOT, RunningServer, clean_environment
from tests.tools.terminal_chat.test_chat_command import DRAWN, READS, terminal

# Each makes Python's standard output one that lacks characters. Python itself would use UTF-8 for the locale C.
ENCODINGS: dict[str, dict[str, str]] = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
LATIN_1 = ENCODINGS["latin-1"]
EACH_HELP = """
import sys
from genai_server.cli import main
for command in sys.argv[1:]:
    try:
        main([command, "--help"])
    except SystemExit as ended:
        assert ended.code == 0
"""
SAYS_ALL = "say Grüße … 中 😀"


@pytest.fixture(params=["ascii", *(pytest.param(name, marks=pytest.mark.slow) for name in ("latin-1", "C"))])
def encoding(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Variables of a process whose output is not UTF-8."""
    yield ENCODINGS[request.param]


def command(*arguments: str, variables: dict[str, str], said: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run `genai-server` in an interpreter of its own, with bytes as its standard input."""
    return run("-m", "genai_server", *arguments, variables=variables, said=said)


def run(*arguments: str, variables: dict[str, str], said: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    environment, command = clean_environment(**{"PYTHONUTF8": "0"} | variables), [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, input=said, capture_output=True, timeout=200, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "ellipsis"),
    [*((each, b"?") for each in ENCODINGS.values()), ({"PYTHONIOENCODING": "ascii:backslashreplace"}, rb"\u2026")],
)
def test_characters_that_output_lacks_are_question_marks_or_what_the_user_wants(
    variables: dict[str, str], ellipsis: bytes
) -> None:
    done = command("--help", variables=variables)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: genai-server COMMAND [OPTION]" + ellipsis)


def test_the_help_of_every_command_is_printed(encoding: dict[str, str]) -> None:
    done = run("-c", EACH_HELP, *COMMANDS, variables=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"usage: genai-server ") == len(COMMANDS)


def test_halves_of_characters_in_answers_are_question_marks_in_utf_8() -> None:
    program = "from genai_server.cli import main; main([]); print('\\ud83d')"
    done = run("-c", program, variables={"PYTHONIOENCODING": "utf-8"})
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, b"?"), done.stderr


def test_answers_of_a_model_are_printed_in_the_encoding(scripted: RunningServer) -> None:
    done = command("chat", scripted.url, SAYS_ALL, variables=LATIN_1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Grüße ? ? ?\n".encode("latin-1"), b"")
    done = command("chat", scripted.url, "Hello", said=f"{SAYS_ALL}\n".encode(), variables=ENCODINGS["C"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Gr??e ? ? ?\n", b"")


@pytest.mark.slow
def test_an_argument_is_read_in_every_locale(scripted: RunningServer) -> None:
    done = command("chat", scripted.url, "say Grüße", variables=ENCODINGS["C"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Gr??e\n", b"")
    done = command("chat", scripted.url, os.fsdecode(b"say Gr\xfc\xdfe"), variables={"LC_ALL": "C.UTF-8"})
    assert b"Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_run_prints_answers_in_the_encoding(encoding: dict[str, str]) -> None:
    done = command("run", str(DEMO), "What is the capital of France?", variables=encoding)
    assert (done.returncode, done.stdout) == (0, b"The capital of France is Paris.\n"), done.stderr
    assert done.stderr.startswith(b"starting a server for ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("top", "URL", "--once", "--interval", "0.1"), ("doctor",), ("key", "bob"), ("models",)]
)
def test_commands_print_what_they_can(
    arguments: tuple[str, ...], encoding: dict[str, str], scripted: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "Größe…").mkdir()
    given = [scripted.url if argument == "URL" else argument for argument in arguments]
    variables = encoding | {"GENAI_MODEL_DIR": str(DEMO), "GENAI_MODELS_DIR": str(tmp_path / "Größe…")}
    done = command(*given, variables=variables)
    assert b"Traceback" not in done.stderr, done.stderr
    assert done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals there")
@pytest.mark.parametrize("term", [DRAWN, {"TERM": "dumb"}])
def test_the_chat_in_a_terminal_shows_what_it_can(scripted: RunningServer, term: dict[str, str]) -> None:
    system = "script: say a…b"
    with terminal(scripted.url, "--system", system, **term, PYTHONIOENCODING="ascii", PYTHONUTF8="0") as chat:
        chat.see(READS if term is DRAWN else "> ")
        chat.type("Hello\r")
        chat.see("a?b")
        chat.see(READS if term is DRAWN else "> ")
        chat.type("/quit\r")
        assert chat.status() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "said", ["say Grüße".encode(), b"\xef\xbb\xbfsay Gr\xc3\xbc\xc3\x9fe\r\n", "say Grüße".encode("latin-1")]
)
def test_piped_text_is_utf_8_or_else_in_the_systems_encoding(scripted: RunningServer, said: bytes) -> None:
    done = command("chat", scripted.url, "Hello", said=said, variables=LATIN_1)
    assert (done.returncode, done.stdout) == (0, "Grüße\n".encode("latin-1")), done.stderr
    done = command("chat", scripted.url, said=said, variables=LATIN_1)
    assert (done.returncode, "Grüße\n".encode("latin-1") in done.stdout) == (0, True), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("question", [["Hello"], []])
def test_piped_bytes_that_are_not_text_are_an_error(scripted: RunningServer, question: list[str]) -> None:
    done = command("chat", scripted.url, *question, said=b"\xff\xfe", variables={"PYTHONIOENCODING": "utf-8"})
    assert b"what is piped into the command is not text, neither" in done.stderr
    assert b"Traceback" not in done.stderr
