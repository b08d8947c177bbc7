"""Adapter files of a model's graph: which fit, and the errors of others."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
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


def save(file: Path, **weights: "NDArray[np.float32] | NDArray[np.float16]") -> Path:
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({n: onnxruntime.OrtValue.ortvalue_from_numpy(w) for n, w in weights.items()})
    adapter.export_adapter(str(file))
    return file


def ones(*shape: int) -> NDArray[np.float32]:
    return np.ones(shape, np.float32)


def refusal(file: Path, known: "dict[str, onnx.TypeProto.Tensor] | None" = None) -> str:
    with pytest.raises(AdapterLoadFailed) as refused:
        check_adapter_file(file, INPUTS if known is None else known)
    return refused.value.message


@pytest.mark.parametrize("rank", [1, 4])
def test_a_dimension_with_a_name_may_have_any_size(file: Path, rank: int) -> None:
    check_adapter_file(save(file, a=ones(8, rank), b=ones(rank, 4)), INPUTS)


def test_adapter_may_lack_some_inputs_of_the_graph(file: Path) -> None:
    check_adapter_file(save(file, b=ones(2, 4)), INPUTS)


def test_weights_without_an_input_in_the_graph_are_named(file: Path) -> None:
    assert refusal(save(file, a=ones(8, 1), z=ones(1))) == (
        f"{file} does not fit this model, whose graph has no input z"
    )
    many = {name: ones(1) for name in "rstuvw"}
    assert refusal(save(file, **many)).endswith("has no input r, s, t and 3 more")


def test_a_weight_of_another_shape_is_named_with_both(file: Path) -> None:
    assert refusal(save(file, a=ones(9, 2))) == f"{file} has a as FLOAT [9, 2], but the model takes FLOAT [8, rank]"
    assert refusal(save(file, b=ones(4))) == f"{file} has b as FLOAT [4], but the model takes FLOAT [rank, 4]"


def test_a_weight_of_another_type_is_named_with_both(file: Path) -> None:
    half = np.ones((8, 2), np.float16)
    assert refusal(save(file, a=half)) == f"{file} has a as FLOAT16 [8, 2], but the model takes FLOAT [8, rank]"


def test_invalid_file_is_reported(file: Path, tmp_path: Path) -> None:
    assert refusal(file) == f"{file} does not exist, or is not a file"
    assert refusal(tmp_path) == f"{tmp_path} does not exist, or is not a file"
    for content in (b"", b"no adapter", save(file, a=ones(8, 64)).read_bytes()[:-1000]):
        file.write_bytes(content)
        assert refusal(file) == f"{file} is not an adapter file of ONNX Runtime's AdapterFormat"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert refusal(file) == f"{file} is Git's pointer to the file, not the file itself; run git lfs pull there"


def test_a_file_without_weights_says_so(file: Path) -> None:
    assert refusal(save(file)) == f"{file} has no weights"


def test_a_model_without_places_for_adapters_says_so(file: Path) -> None:
    assert refusal(save(file, a=ones(8, 1)), {}) == (
        "the model takes no adapters: its graph has no inputs with defaults for their weights"
    )
    assert adapter_inputs(DEMO) == {}


def test_the_places_are_the_inputs_that_have_a_default(adapted: Path) -> None:
    found = adapter_inputs(adapted)
    assert len(found) == 2 * (2 * 6 + 1)  # of two matrices in each of six layers, and of the output head
    graph = onnx.load(str(adapted / "model.onnx"), load_external_data=False).graph
    assert optional_inputs(graph) == found
    assert "input_ids" not in found
    assert all(list(tensor.dims).count(0) == 1 for tensor in graph.initializer if tensor.name in found)
