"""`genai-server` itself: its subcommands, each of which starts without importing the others."""

import subprocess
import sys
from pathlib import Path

import pytest

from genai_server.cli import main
from genai_server.cli.commands import COMMANDS
from genai_server.config.setting_form import option
from genai_server.config.settings import SETTING_GROUPS, Settings
from tests.profiles.files import write_session
from tests.running_server import ROOT, clean_environment


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_how_it_is_used(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: genai-server {command} ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_help_of_serve_has_groups_the_common_ones_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help-all"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    places = [
        shown.index(text) for text in ("[MODEL]", "Examples:\n  genai-server serve ", "\n  --port", "\n  --max-queue")
    ]
    assert places == sorted(places)
    assert [title for title in SETTING_GROUPS if f"\n{title.lower()}:\n" not in shown] == []
    assert all(option(name) in shown for name in Settings.model_fields)


def test_help_of_serve_ends_after_the_common_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    common = next(iter(SETTING_GROUPS.values()))
    assert {name for name in Settings.model_fields if f"  {option(name)} " in shown} == {*common}
    assert shown.endswith(f"--help-all lists {len(Settings.model_fields) - len(common)} more options.\n")
    assert len(shown.splitlines()) < 70


def test_control_c_ends_a_command_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("genai_server.cli.commands.import_module", interrupt)
    assert main(["pull", "org/name"]) == 130
    assert capsys.readouterr().err == "\n"


def test_no_command_at_all_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["nonsense"], 2)])
def test_missing_command_prints_all_commands(
    arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status
    printed = capsys.readouterr()
    assert all(command in printed.out + printed.err for command in COMMANDS)


def test_a_command_starts_without_the_modules_of_the_others() -> None:
    script = (
        "import sys\n"
        "from genai_server.cli import main\n"
        "main(['key', 'bob'])\n"
        "print(*sorted(name for name in sys.modules if name.startswith('genai_server.cli.')), 'onnx' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=True)
    modules = ("commands", "key_command", "parser", "serve", "serve.exit_status", "standard_streams")
    assert result.stdout.split()[-7:] == [*(f"genai_server.cli.{name}" for name in modules), "False"]


def cut(*arguments: str, read: int = 0, **variables: str) -> tuple[int, str]:
    """Exit status and error output of a command whose reader closes the pipe after some bytes."""
    command = [sys.executable, "-m", "genai_server", *arguments]
    environment = clean_environment(**variables)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(read)
        process.stdout.close()
        return process.wait(30), process.stderr.read()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["doctor", "--device", "scripted"], ["key", "bob"], ["--help"]])
def test_closed_pipe_ends_a_command_like_sigpipe(arguments: list[str]) -> None:
    assert cut(*arguments, PYTHONUNBUFFERED="") == (141, "")


def test_closed_pipe_ends_an_unbuffered_command_quietly() -> None:
    assert cut("key", "bob", PYTHONUNBUFFERED="1") == (141, "")


def test_closed_pipe_ends_a_long_output_quietly(tmp_path: Path) -> None:
    write_session(tmp_path, decodes=1000)  # 220 KB: more than the 64 KB of a pipe, so a write fails
    assert cut("profile", "report", str(tmp_path), "--json", read=1) == (141, "")
