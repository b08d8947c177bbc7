"""Each script that documents name runs with the current server, on the demo model and with short arguments.

Tested elsewhere: make_adapter_model.py (the fixture `adapted`), pin_dependencies.py (test_deploy.py),
document_settings.py (test_docs.py), check_gpu.py (test_check_gpu.py), and the load scripts (tests/load). Not tested:
scripts that build models with PyTorch, for minutes, of which test_commands.py tests the arguments, and
make_pictures.py, whose results a person looks at.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.running_server import DEMO, run_python

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")


def run(script: str, *arguments: str) -> str:
    """A script's output."""
    return run_python(f"scripts/{script}.py", *arguments)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["profile_step", str(DEMO), "--rows", "1,2", "--steps", "1"], ["in ONNX Runtime", "PackedMatMul"]),
        (["profile_prompt", str(DEMO), "--tokens", "64", "--rounds", "1"], ["the whole prompt"]),
        (["check_templates", str(DEMO)], ["hermes", "2 read"]),
        (
            ["simulate_routing", "--replicas", "3,6", "--requests", "30"],
            ["| 6 | prefix |", "tokens found in the cache"],
        ),
    ],
    ids=lambda value: value[0],
)
def test_a_script_prints_its_table(command: list[str], expected: list[str]) -> None:
    printed = run(*command)
    assert [word for word in expected if word not in printed] == []


@LINUX
@pytest.mark.timeout(180)
def test_servers_are_compared_in_one_table_and_a_plot(tmp_path: Path) -> None:
    files = [tmp_path / "peers.json", tmp_path / "peers.svg"]
    written = ["--json", str(files[0]), "--plot", str(files[1])]
    printed = run("compare_peers", str(DEMO), "--quick", "--real", "--work", str(tmp_path / "work"), *written)
    assert "int8, perplexity " in printed
    assert "perplexity unknown" not in printed
    assert "tokens/s, 2 clients" in printed
    assert "NOT COMPARABLE" not in printed
    assert {each["failed"] for each in json.loads(files[0].read_text(encoding="utf-8"))["summaries"]} == {0}
    assert "<svg" in files[1].read_text(encoding="utf-8")


@LINUX
@pytest.mark.timeout(120)
def test_third_party_client_works(tmp_path: Path) -> None:
    printed = run("check_clients", "--quick", "--clients", "openai (Python)", "--work", str(tmp_path))
    assert "`openai` (Python)" in printed
    assert "not run" not in printed
