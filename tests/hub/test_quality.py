"""What the builder wrote is loaded once, and its measurement is kept."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from genai_server.errors import ExportFailed
from genai_server.hub import quality
from tests.running_server import DEMO

RESULT = {"tokens": 100, "perplexity": 14.054, "perplexity_of_source": 14.034, "same_top_token": 0.981}
needs_a_shell = pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "built"
    shutil.copytree(DEMO, folder)
    return folder


def python_that(tmp_path: Path, script: str) -> Path:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def test_graphs_that_can_be_loaded_pass_and_others_are_named(built: Path) -> None:
    quality.check_graphs(built, dict(os.environ))
    (built / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ExportFailed, match=r"ONNX Runtime cannot load what the builder wrote: .*model\.onnx"):
        quality.check_graphs(built, dict(os.environ))


@needs_a_shell
def test_a_measurement_is_said_and_kept(built: Path, tmp_path: Path) -> None:
    python = python_that(tmp_path, f"touch $2/.measured.onnx; echo loading; echo '{json.dumps(RESULT)}'")
    said = quality.measure(built, tmp_path, python, {})
    assert said == (
        "perplexity 14.05 on 100 tokens, that of the source 14.03; both prefer the same token at 98.1% of them"
    )
    assert json.loads((built / quality.QUALITY).read_bytes()) == RESULT
    assert not (built / ".measured.onnx").exists()


@needs_a_shell
def test_a_measurement_that_ends_early_counts_as_far_as_it_came(built: Path, tmp_path: Path) -> None:
    first = RESULT | {"tokens": 50}
    python = python_that(tmp_path, f"echo '{json.dumps(first)}'; echo '{json.dumps(RESULT)}'; echo killed >&2; exit 9")
    assert quality.measure(built, tmp_path, python, {}).startswith("perplexity 14.05 on 100 tokens")


@needs_a_shell
def test_a_model_that_cannot_be_measured_is_built_nevertheless(built: Path, tmp_path: Path) -> None:
    python = python_that(tmp_path, "echo 'both models need 9 MiB, and 8 MiB are free' >&2; exit 1")
    said = quality.measure(built, tmp_path, python, {})
    assert said == "its quality was not measured: both models need 9 MiB, and 8 MiB are free"
    assert not (built / quality.QUALITY).exists()
    assert quality.measure(built, tmp_path, tmp_path / "missing", {}).startswith("its quality was not measured: ")
