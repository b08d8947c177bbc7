"""Adapter files of a model's graph: which fit, and the errors of others."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from _models.adapter_graph import save_adapter
from numpy.typing import NDArray

from genai_server.engine.model.adapter_file import adapter_inputs, check_adapter_file, optional_inputs
from genai_server.errors import AdapterLoadFailed
from tests.running_server import DEMO

FLOAT = onnx.TensorProto.FLOAT


def inputs(**shapes: "list[int | str]") -> "dict[str, onnx.TypeProto.Tensor]":
    values = {name: onnx.helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()}
    return {name: value.type.tensor_type for name, value in values.items()}


INPUTS = inputs(a=[8, "rank"], b=["rank", 4])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.onnx_adapter"


def ones(*shape: int, kind: Any = np.float32) -> "NDArray[Any]":
    return np.ones(shape, kind)


def refusal(file: Path, known: "dict[str, onnx.TypeProto.Tensor] | None" = None) -> str:
    with pytest.raises(AdapterLoadFailed) as refused:
        check_adapter_file(file, INPUTS if known is None else known)
    return refused.value.message


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param({"a": ones(8, 1), "b": ones(1, 4)}, id="rank 1"),
        pytest.param({"a": ones(8, 4), "b": ones(4, 4)}, id="rank 4"),
        pytest.param({"b": ones(2, 4)}, id="some inputs only"),
    ],
)
def test_an_adapter_may_have_any_rank_and_lack_some_inputs(file: Path, weights: "dict[str, NDArray[Any]]") -> None:
    save_adapter(file, weights)
    check_adapter_file(file, INPUTS)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({"a": ones(8, 1), "z": ones(1)}, "does not fit this model, whose graph has no input z"),
        (
            {name: ones(1) for name in "rstuvw"},
            "does not fit this model, whose graph has no input r, s, t and 3 more",
        ),
        ({"a": ones(9, 2)}, "has a as FLOAT [9, 2], but the model takes FLOAT [8, rank]"),
        ({"b": ones(4)}, "has b as FLOAT [4], but the model takes FLOAT [rank, 4]"),
        ({"a": ones(8, 2, kind=np.float16)}, "has a as FLOAT16 [8, 2], but the model takes FLOAT [8, rank]"),
        ({}, "has no weights"),
    ],
    ids=["another input", "many inputs", "another size", "another rank", "another type", "no weights"],
)
def test_weights_that_do_not_fit_are_named(file: Path, weights: "dict[str, NDArray[Any]]", why: str) -> None:
    save_adapter(file, weights)
    assert refusal(file) == f"{file} {why}"


def test_invalid_file_is_reported(file: Path, tmp_path: Path) -> None:
    for path in (file, tmp_path):
        assert refusal(path) == f"{path} does not exist, or is not a file"
    save_adapter(file, {"a": ones(8, 64)})
    for content in (b"", b"no adapter", file.read_bytes()[:-1000]):
        file.write_bytes(content)
        assert refusal(file) == f"{file} is not an adapter file of ONNX Runtime's AdapterFormat"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert refusal(file) == f"{file} is Git's pointer to the file, not the file itself; run git lfs pull there"


def test_a_model_without_places_for_adapters_says_so(file: Path) -> None:
    save_adapter(file, {"a": ones(8, 1)})
    assert refusal(file, {}) == ("the model takes no adapters: its graph has no inputs with defaults for their weights")
    assert adapter_inputs(DEMO) == {}


def test_the_places_are_the_inputs_that_have_a_default(adapted: Path) -> None:
    found = adapter_inputs(adapted)
    assert len(found) == 2 * (2 * 6 + 1)  # of two matrices in each of six layers, and of the output head
    graph = onnx.load(str(adapted / "model.onnx"), load_external_data=False).graph
    assert optional_inputs(graph) == found
    assert "input_ids" not in found
    assert all(list(tensor.dims).count(0) == 1 for tensor in graph.initializer if tensor.name in found)
