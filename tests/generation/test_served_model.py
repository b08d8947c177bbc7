"""The fingerprint changes with everything that can change an answer, and with nothing else."""

import os
from pathlib import Path
from typing import Any

import pytest

from genai_server.config.sources import load_settings
from genai_server.generation.catalog import fingerprint
from genai_server.messages.server_status import ModelState, ModelStatus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_text("weights")
    (tmp_path / "inner").mkdir()
    return tmp_path


def of(folder: Path, template: str = "", devices: tuple[str, ...] = ("cpu",), **settings: str) -> str:
    about: Any = {"created": 1, "chat_template": template}
    model = ModelStatus("m", str(folder), list(devices), 0, ModelState.READY, **about)
    return fingerprint(load_settings(settings, environ={}, dotenv=None), model)


def test_a_fingerprint_is_short_and_stays(folder: Path) -> None:
    assert of(folder) == of(folder, port="1", log_level="debug", api_keys="k" * 20)
    assert of(folder).startswith("fp_")
    assert len(of(folder)) == 15


def test_it_changes_with_the_files(folder: Path) -> None:
    before = of(folder)
    os.utime(folder / "model.onnx", (1, 1))
    touched = of(folder)
    (folder / "more").write_text("")
    assert len({before, touched, of(folder)}) == 3


def test_it_changes_with_what_changes_answers(folder: Path) -> None:
    template = folder.parent / f"{folder.name}.jinja"
    template.write_text("x")
    found = [
        of(folder),
        of(folder, devices=("cpu", "cuda")),
        of(folder, exact="true"),
        of(folder, threads="2"),
        of(folder, options="[session]\ninter_op_num_threads = 2"),
        of(folder, template="chatml"),
        of(folder, template=str(template)),
    ]
    template.write_text("xy")
    found.append(of(folder, template=str(template)))
    assert len(set(found)) == len(found)


def test_a_model_without_files_has_one(tmp_path: Path) -> None:
    assert of(tmp_path / "none", devices=("scripted",)).startswith("fp_")
