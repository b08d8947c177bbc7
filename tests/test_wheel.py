"""A wheel installed into a separate environment answers from an empty folder: no clone is needed."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.running_server import DEMO, ROOT, clean_environment, run_server


def _uv() -> str:
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip("uv is not installed (pip install uv)")
    return found


def _pip_option(name: str) -> str:
    """One of pip's settings, so that uv searches where pip does."""
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.timeout(300)
def test_installed_wheel_serves_the_demo_from_an_empty_folder(tmp_path: Path) -> None:
    uv = _uv()
    places = {"UV_DEFAULT_INDEX": "index-url", "UV_INDEX": "extra-index-url", "UV_FIND_LINKS": "find-links"}
    variables = {name: found for name, option in places.items() if (found := _pip_option(option))}
    environment = clean_environment(UV_INDEX_STRATEGY="unsafe-best-match", **variables)

    def run(*command: str) -> None:
        done = subprocess.run([uv, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    run("build", "--wheel", "--out-dir", str(tmp_path), str(ROOT))
    run("build", "--wheel", "--out-dir", str(tmp_path), str(ROOT / "native"))
    (wheel,) = tmp_path.glob("genai_server-*.whl")
    (operators,) = tmp_path.glob("genai_server_native-*.whl")
    assert (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8").count(f"'./{wheel.name}[cpu]'") == 3
    with zipfile.ZipFile(wheel) as packed:
        held = {Path(name).name for name in packed.namelist() if name.startswith("genai_server/bundled/demo/")}
    assert held == {file.name for file in DEMO.iterdir()}

    run("venv", "--python", sys.executable, "clean")
    python = tmp_path / "clean" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run("pip", "install", "--python", str(python), f"{wheel}[cpu]", str(operators))
    empty = tmp_path / "empty"
    empty.mkdir()
    program = (str(python.with_name("genai-server")), "serve")
    with run_server(tmp_path, program=program, cwd=empty, seconds=120) as server:
        model = Path(server.health()["model_dir"])
        assert model.is_relative_to(tmp_path / "clean")
        assert server.device("cpu")["batching"]["exact"], server.log()
        assert "Paris" in server.chat("What is the capital of France?").json()["content"]
    assert not list(empty.iterdir())
