"""onnxruntime-genai's processor without weights: expansions and tensors of each family."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from genai_server.media.images.processor import ImageProcessor, ProcessedImage, UnusableImage, png
from genai_server.model_files.speech_and_vision import read_vision_model
from tests.media.images.pictures import picture
from tests.media.images.vision_directory import IDS, make_vision_directory

BUILT = Path(__file__).parents[2] / "built_models"


def _processor(model_dir: Path, folder: Path, **changed: Any) -> ImageProcessor:
    model = read_vision_model(model_dir)
    assert model is not None
    folder.mkdir()
    return ImageProcessor(replace(model, **changed), model_dir, folder)


def _process(own_folder: Path, kind: str, size: tuple[int, int] = (640, 480), **options: Any) -> ProcessedImage:
    model_dir = make_vision_directory(own_folder / kind, kind, **options)
    return _processor(model_dir, own_folder / f"{kind}-stub").process(png(picture(*size)))


def test_qwen_repeats_its_placeholder_for_each_token(own_folder: Path) -> None:
    found = _process(own_folder, "qwen3_vl")
    assert found.expansion == [IDS["<|image_pad|>"]] * 300
    assert found.grid == (1, 15, 20)
    assert found.tensors["pixel_values"].shape == (1200, 1536)
    assert found.tensors["image_grid_thw"].tolist() == [[1, 30, 40]]
    assert "input_ids" not in found.tensors


def test_gemma_3_has_256_features_between_its_marks(own_folder: Path) -> None:
    found = _process(own_folder, "gemma3")
    first, last = found.expansion.index(IDS["<start_of_image>"]), found.expansion.index(IDS["<end_of_image>"])
    assert found.expansion[first + 1 : last] == [IDS["<image_soft_token>"]] * 256
    assert found.grid is None
    assert found.tensors["pixel_values"].shape == (1, 3, 896, 896)


def test_gemma_4_has_as_many_features_as_its_image_needs(own_folder: Path) -> None:
    found = _process(own_folder, "gemma4")
    first, last = found.expansion.index(IDS["<|image>"]), found.expansion.index(IDS["<image|>"])
    assert found.expansion[first + 1 : last] == [IDS["<|image|>"]] * 266
    assert found.tensors["pixel_position_ids"].shape[1] == found.tensors["pixel_values"].shape[1]


def test_mistral_ends_each_row(own_folder: Path) -> None:
    found = _process(own_folder, "mistral3", (64, 96))
    row = [IDS["[IMG]"]] * 2
    assert found.expansion == [*row, IDS["[IMG_BREAK]"], *row, IDS["[IMG_BREAK]"], *row, IDS["[IMG_END]"]]
    assert found.tensors["image_sizes"].tolist() == [[96, 64]]


def test_lfm_puts_its_features_between_marks(own_folder: Path) -> None:
    found = _process(own_folder, "lfm2_vl", (64, 64))
    assert found.expansion == [IDS["<|image_start|>"], *[IDS["<image>"]] * 4, IDS["<|image_end|>"]]
    assert found.tensors["image_attention_mask"].shape == (1, 16)


@pytest.mark.parametrize(
    ("type", "dtype"),
    [(TensorProto.FLOAT16, np.float16), (TensorProto.BFLOAT16, np.float32), (TensorProto.FLOAT, np.float32)],
)
def test_pixels_have_the_type_of_the_vision_graph(own_folder: Path, type: int, dtype: Any) -> None:
    assert _process(own_folder, "qwen3_vl", pixels=type).tensors["pixel_values"].dtype == dtype


def test_tokens_around_the_placeholder_are_left_out(own_folder: Path) -> None:
    model_dir = make_vision_directory(own_folder / "model", "mistral3")
    processor = _processor(model_dir, own_folder / "stub", marker="see [IMG][INST]")
    row = [IDS["[IMG]"]] * 2
    assert processor.process(png(picture(64, 64))).expansion == [*row, IDS["[IMG_BREAK]"], *row, IDS["[IMG_END]"]]


@pytest.mark.parametrize("name", ["qwen-3-vl-images", "qwen-3.5-images"])
def test_tensors_are_those_of_the_complete_model(own_folder: Path, name: str) -> None:
    import onnxruntime_genai as og

    image = png(picture(200, 120))
    found = _processor(BUILT / name, own_folder / "stub").process(image)
    whole = og.Model(str(BUILT / name)).create_multimodal_processor()
    model = read_vision_model(BUILT / name)
    assert model is not None
    named = whole(model.marker, images=og.Images.open_bytes(image))
    assert named["input_ids"].as_numpy().reshape(-1).tolist()[1:-1] == found.expansion
    assert set(found.tensors) == {*named.keys()} - {"input_ids"}
    for key, tensor in found.tensors.items():
        assert np.array_equal(tensor, named[key].as_numpy())


def test_no_weights_are_needed(own_folder: Path) -> None:
    model_dir = own_folder / "model"
    shutil.copytree(BUILT / "qwen-3-vl-images", model_dir, ignore=shutil.ignore_patterns("*.data"))
    assert _processor(model_dir, own_folder / "stub").process(png(picture())).grid is not None


def test_image_that_the_processor_refuses_says_why(own_folder: Path) -> None:
    with pytest.raises(UnusableImage, match="is refused by the model's image processor: .*aspect ratio"):
        _process(own_folder, "qwen3_vl", (1, 500))


def test_tokenizer_without_the_placeholder_is_an_error(own_folder: Path) -> None:
    model_dir = make_vision_directory(own_folder / "model")
    demo = Path(__file__).parents[3] / "models" / "demo"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, model_dir / name)
    with pytest.raises(Exception, match="image_pad"):
        _processor(model_dir, own_folder / "stub")


def test_images_are_prepared_without_the_extra_for_audio() -> None:
    program = "import sys; sys.modules['av'] = None; import genai_server.media.images.process"
    subprocess.run([sys.executable, "-c", program], check=True)
