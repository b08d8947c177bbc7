"""`genai-server` itself: its subcommands, each of which starts without importing the others."""

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from genai_server.cli import main
from genai_server.cli.commands import COMMANDS
from genai_server.config.setting_form import option
from genai_server.config.settings import SETTING_GROUPS, Settings
from tests.profiles.files import write_session
from tests.running_server import PATIENCE, ROOT, clean_environment, run_python


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_how_it_is_used_in_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert (ended.value.code, shown.startswith(f"usage: genai-server {command} ")) == (0, True)
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_help_of_serve_has_the_common_options_and_on_demand_all_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help-all"])
    shown = capsys.readouterr().out
    ordered = ("[MODEL]", "Examples:\n  genai-server serve ", "\n  --port", "\n  --max-queue")
    assert sorted(ordered, key=shown.index) == list(ordered)
    assert [title for title in SETTING_GROUPS if f"\n{title.lower()}:\n" not in shown] == []
    assert all(option(name) in shown for name in Settings.model_fields)
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    common = next(iter(SETTING_GROUPS.values()))
    assert {name for name in Settings.model_fields if f"  {option(name)} " in shown} == {*common}
    assert shown.endswith(f"--help-all lists {len(Settings.model_fields) - len(common)} more options.\n")
    assert len(shown.splitlines()) < 70


def test_control_c_causes_no_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("genai_server.cli.commands.import_module", interrupt)
    assert main(["pull", "org/name"]) == 130
    assert capsys.readouterr().err == "\n"


def test_no_command_at_all_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {command} " in shown for command in COMMANDS)
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert (ended.value.code, capsys.readouterr().out) == (0, shown)
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    printed = capsys.readouterr().err
    assert (ended.value.code, [command for command in COMMANDS if command not in printed]) == (2, [])


def test_a_command_starts_without_the_modules_of_the_others() -> None:
    output = run_python(
        "-c",
        "import sys\n"
        "from genai_server.cli import main\n"
        "main(['key', 'bob'])\n"
        "print(*sorted(name for name in sys.modules if name.startswith('genai_server.cli.')), 'onnx' in sys.modules)\n",
    )
    modules = ("commands", "key_command", "parser", "serve", "serve.exit_status", "standard_streams")
    assert output.split()[-7:] == [*(f"genai_server.cli.{name}" for name in modules), "False"]


def cut(*arguments: str, read: int = 0, **variables: str) -> tuple[int, str]:
    """Exit status and error output of a command whose reader closes the pipe after some bytes."""
    command = [sys.executable, "-m", "genai_server", *arguments]
    environment = clean_environment(**variables)
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(read)
        process.stdout.close()
        return process.wait(PATIENCE), process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [
        ("key bob", "1"),
        *(pytest.param(each, "", marks=pytest.mark.slow) for each in ("doctor --device scripted", "key bob", "--help")),
    ],
)
def test_closed_pipe_ends_a_command_like_sigpipe(arguments: str, unbuffered: str) -> None:
    assert cut(*arguments.split(), PYTHONUNBUFFERED=unbuffered) == (141, "")


def test_closed_pipe_ends_a_long_output_quietly(tmp_path: Path) -> None:
    write_session(tmp_path, decodes=1000)  # 220 KB: more than the 64 KB of a pipe, so a write fails
    assert cut("profile", "report", str(tmp_path), "--json", read=1) == (141, "")
