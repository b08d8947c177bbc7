"""Profiles of single passes, by the C API of ONNX Runtime on the run options of its Python package."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from genai_server.engine.model import session as session_module
from genai_server.engine.model.session import check_pass_profiles, profile_pass
from genai_server.errors import RunnerFailed
from tests.running_server import ROOT

GRAPH = ROOT / "tests" / "built_models" / "whisper" / "encoder.onnx"


@pytest.fixture
def tried_anew() -> Iterator[None]:
    session_module._functions.cache_clear()
    yield
    session_module._functions.cache_clear()


@pytest.mark.parametrize(
    ("where", "name", "value", "message"),
    [
        (session_module, "_GET_VERBOSITY", session_module._GET_SEVERITY, "cannot read Python's run options"),
        (onnxruntime, "RunOptions", object, "are no object of pybind11"),
        (session_module, "_LIBRARIES", ("none.so",), "capi has no library with the C API"),
        (session_module, "_LIBRARIES", ("__init__.py",), "__init__.py cannot be used"),
        (session_module, "_API_VERSION", 10_000, "has no version 10000 of the C API"),
    ],
    ids=["other run options", "an object of another kind", "no library", "no usable library", "an older library"],
)
def test_another_library_or_other_options_are_refused(
    where: Any, name: str, value: object, message: str, tried_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, value)
    with pytest.raises(RunnerFailed, match=message):
        check_pass_profiles()


def test_a_pass_is_profiled_and_the_next_one_is_not(tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(GRAPH, providers=["CPUExecutionProvider"])
    (features,) = session.get_inputs()
    given = {features.name: np.zeros((1, *features.shape[1:]), np.float32)}
    options = onnxruntime.RunOptions()
    profile_pass(options, str(tmp_path / "päss"))
    session.run(None, given, options)
    (file,) = tmp_path.iterdir()
    session.run(None, given, onnxruntime.RunOptions())
    session.run(None, given)
    assert list(tmp_path.iterdir()) == [file]
    assert file.name.startswith("päss_")
    names = {event["name"] for event in json.loads(file.read_text())}
    assert "model_run" in names


def test_options_keep_their_other_values() -> None:
    options = onnxruntime.RunOptions()
    options.logid, options.log_severity_level, options.terminate = "one", 3, True
    profile_pass(options, "/somewhere/with/a/name/that/is/not/short")
    assert (options.logid, options.log_severity_level, options.terminate) == ("one", 3, True)
