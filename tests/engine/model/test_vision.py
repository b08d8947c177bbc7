"""The graph that encodes images: with matrices of 8 bits where these are faster, and close to the model's own."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from genai_server.engine.decoder_graph import VisionFiles
from genai_server.engine.graph_rewriting import matrices
from genai_server.engine.model.vision import MAX_ERROR, ImageEncoder, relative_error
from genai_server.engine.model.vision_files import read_vision_files
from genai_server.engine.model.weights import int8_model
from genai_server.errors import RunnerFailed
from genai_server.options.device import DEFAULT_OPTIONS
from tests.running_server import ROOT

DEMO_VISION = ROOT / "models" / "demo-vision"
# Gains that any graph has, and none.
ALWAYS, NEVER = 0.0, 1e9
ROWS, COLUMNS = 6, 8


@pytest.fixture(scope="module")
def files() -> VisionFiles:
    found = read_vision_files(DEMO_VISION)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def int8(files: VisionFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph with matrices of 8 bits. The model's own, in 16 bits behind casts, are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrices, "_MIN_VALUES", 64 * 1024)
        found = int8_model(DEMO_VISION, tmp_path_factory.mktemp("cache"), part=files.part, floats=True)
    assert found is not None
    return found / files.vision.name


@pytest.fixture(scope="module")
def picture() -> dict[str, NDArray[Any]]:
    pixels = np.random.default_rng(0).uniform(-1, 1, (ROWS * COLUMNS, 1536)).astype(np.float32)
    return {"pixel_values": pixels, "image_grid_thw": np.array([[1, ROWS, COLUMNS]])}


@pytest.fixture(scope="module")
def own(files: VisionFiles, picture: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """The features by the model's own graph."""
    return ImageEncoder(files, 1).encode(picture)


def encoder(files: VisionFiles, int8: Path, min_gain: float) -> ImageEncoder:
    return ImageEncoder(files, 1, DEFAULT_OPTIONS, int8, min_gain)


def test_matrices_of_8_bits_stay_close(
    files: VisionFiles, int8: Path, picture: dict[str, NDArray[Any]], own: NDArray[Any]
) -> None:
    assert "MatMulIntegerToFloat" in {node.op_type for node in onnx.load(int8, load_external_data=False).graph.node}
    chosen = encoder(files, int8, ALWAYS)
    first = chosen.encode(picture)
    assert 0 < relative_error(first, own) <= MAX_ERROR
    assert np.array_equal(chosen.encode(picture), first)


def test_exact_features_are_those_of_the_models_own_graph(
    files: VisionFiles, int8: Path, picture: dict[str, NDArray[Any]], own: NDArray[Any]
) -> None:
    chosen = encoder(files, int8, ALWAYS)
    for _ in range(2):  # before and after the choice
        assert np.array_equal(chosen.encode(picture, exact=True), own)
        assert not np.array_equal(chosen.encode(picture), own)


def test_a_graph_that_is_no_faster_is_dropped(
    files: VisionFiles, int8: Path, picture: dict[str, NDArray[Any]], own: NDArray[Any]
) -> None:
    kept = encoder(files, int8, NEVER)
    assert np.array_equal(kept.encode(picture), own)
    assert np.array_equal(kept.encode(picture), own)


def test_a_graph_with_other_features_is_dropped(
    files: VisionFiles, tmp_path: Path, picture: dict[str, NDArray[Any]], own: NDArray[Any]
) -> None:
    wrong = _with_larger(files.vision, "out_weight_16", tmp_path / "wrong.onnx")
    kept = encoder(files, wrong, ALWAYS)
    assert np.array_equal(kept.encode(picture), own)


@pytest.mark.parametrize("is_graph", [True, False], ids=["in its first pass", "when it is opened"])
def test_a_graph_that_fails_is_dropped(
    is_graph: bool, files: VisionFiles, tmp_path: Path, picture: dict[str, NDArray[Any]], own: NDArray[Any]
) -> None:
    failing = _with_another_output(files.vision, tmp_path / "failing.onnx") if is_graph else tmp_path / "none.onnx"
    kept = encoder(files, failing, ALWAYS)
    for _ in range(2):
        assert np.array_equal(kept.encode(picture), own)


def test_wrong_tensors_do_not_decide(files: VisionFiles, int8: Path, picture: dict[str, NDArray[Any]]) -> None:
    chosen = encoder(files, int8, ALWAYS)
    expected = encoder(files, int8, ALWAYS).encode(picture)
    with pytest.raises(RunnerFailed):
        chosen.encode({"pixel_values": np.zeros((3, 3), np.float32)})
    assert np.array_equal(chosen.encode(picture), expected)


def test_wrong_tensors_are_an_error_of_the_request(files: VisionFiles, int8: Path) -> None:
    with pytest.raises(RunnerFailed, match="an image cannot be encoded"):
        encoder(files, int8, ALWAYS).encode({"pixel_values": np.zeros((3, 3), np.float32)})


def _with_larger(graph: Path, name: str, target: Path) -> Path:
    """The graph with a larger weight."""
    model = onnx.load(graph)
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float16(1.2), name))
    onnx.save(model, target)
    return target


def _with_another_output(graph: Path, target: Path) -> Path:
    """The graph with its features under another name."""
    model = onnx.load(graph)
    (output,) = model.graph.output
    model.graph.node.append(helper.make_node("Identity", [output.name], ["others"]))
    output.name = "others"
    onnx.save(model, target)
    return target
