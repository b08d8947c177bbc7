"""`genai-server` itself: which subcommands there are, and that each starts without the others."""

import subprocess
import sys

import pytest

from genai_server.cli import COMMANDS, main
from tests.running_server import ROOT, clean_environment


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
    assert result.stdout.splitlines()[-1] == "genai_server.cli.key False"
