"""`genai-server` itself: which subcommands there are, and that each starts without the others."""

import subprocess
import sys
from pathlib import Path

import pytest

from genai_server.cli import COMMANDS, main
from tests.local_hub import HubRepository, run_hub
from tests.profiles.files import write_session
from tests.running_server import ROOT, RunningServer, clean_environment


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_how_it_is_used(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: genai-server {command} ")


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["nonsense"], 2)])
def test_who_names_no_command_is_told_all(
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
    modules = ("key", "parser", "serve", "serve.exit_status")
    assert result.stdout.split()[-5:] == [*(f"genai_server.cli.{name}" for name in modules), "False"]


def cut(*arguments: str, read: int = 0, **variables: str) -> tuple[int, str]:
    """Exit status of a command whose reader goes after some bytes, and what it complains of."""
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


@pytest.mark.parametrize("arguments", [["doctor", "--device", "scripted"], ["key", "bob"], ["--help"]])
def test_a_command_whose_reader_has_gone_ends_as_if_by_sigpipe(arguments: list[str]) -> None:
    assert cut(*arguments, PYTHONUNBUFFERED="") == (141, "")


def test_without_buffers_likewise() -> None:
    assert cut("key", "bob", PYTHONUNBUFFERED="1") == (141, "")


def test_a_long_output_that_is_cut_in_the_middle_likewise(tmp_path: Path) -> None:
    write_session(tmp_path, decodes=1000)  # 220 KB: more than the 64 KB that a pipe holds, so a write meets the end
    assert cut("profile", "report", str(tmp_path), "--json", read=1) == (141, "")


def test_the_table_of_a_server_likewise(scripted: RunningServer) -> None:
    assert cut("top", scripted.url, "--once", "--interval", "0.1") == (141, "")


def test_what_is_told_of_a_download_likewise(tmp_path: Path) -> None:
    with run_hub() as hub:
        hub.repositories["org/m"] = HubRepository({"genai_config.json": b"{}"})
        assert cut("pull", "org/m", "--to", str(tmp_path / "m"), HF_ENDPOINT=hub.url) == (141, "")
