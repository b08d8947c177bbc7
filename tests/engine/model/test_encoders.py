"""The graph that encodes images, with the model's own weights or packed ones of 8 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from genai_server.engine.graph_description import VisionFiles
from genai_server.engine.model.encoders import ImageEncoder
from genai_server.engine.model.graph_reader import read_vision_files
from genai_server.engine.model.weights import packed_encoder
from genai_server.errors import RunnerFailed
from genai_server.options.device import DEFAULT_OPTIONS
from tests.running_server import ROOT

DEMO_VISION = ROOT / "models" / "demo-vision"
ROWS, COLUMNS = 6, 8


@pytest.fixture(scope="module")
def files() -> VisionFiles:
    found = read_vision_files(DEMO_VISION)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def packed(files: VisionFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph with packed products. The model's own weights are in 16 bits behind casts."""
    found = packed_encoder(DEMO_VISION, tmp_path_factory.mktemp("cache"), DEFAULT_OPTIONS, files.part)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def picture() -> dict[str, NDArray[Any]]:
    pixels = np.random.default_rng(0).uniform(-1, 1, (ROWS * COLUMNS, 1536)).astype(np.float32)
    return {"pixel_values": pixels, "image_grid_thw": np.array([[1, ROWS, COLUMNS]])}


@pytest.fixture(scope="module")
def own(files: VisionFiles, picture: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """The features by the model's own graph."""
    return ImageEncoder(files, 1).encode(picture)


def test_weights_of_8_bits_stay_close(
    files: VisionFiles, packed: Path, picture: dict[str, NDArray[Any]], own: NDArray[Any]
) -> None:
    operators = {node.op_type for node in onnx.load(packed, load_external_data=False).graph.node}
    assert "PackedMatMul" in operators
    found = ImageEncoder(files, 1, packed=packed).encode(picture)
    error = np.linalg.norm(found - own) / np.linalg.norm(own)
    assert 0 < error <= 0.03


def test_features_are_bitwise_the_same_each_time_and_with_any_number_of_threads(
    files: VisionFiles, packed: Path, picture: dict[str, NDArray[Any]]
) -> None:
    encoders = [ImageEncoder(files, threads, packed=packed) for threads in (1, 3)]
    first, *others = (encoder.encode(picture) for encoder in encoders for _ in range(2))
    assert all(np.array_equal(found, first) for found in others)


@pytest.mark.parametrize("is_packed", [False, True])
def test_wrong_tensors_are_an_error_of_the_request(
    files: VisionFiles, packed: Path, picture: dict[str, NDArray[Any]], is_packed: bool
) -> None:
    encoder = ImageEncoder(files, 1, packed=packed if is_packed else None)
    before = encoder.encode(picture)
    with pytest.raises(RunnerFailed, match="an image cannot be encoded"):
        encoder.encode({"pixel_values": np.zeros((3, 3), np.float32)})
    assert np.array_equal(encoder.encode(picture), before)
