"""onnxruntime-genai's processor of images for one model directory, without the model's weights.

The library creates a processor from a loaded model only. So it loads a directory with the model's own configuration and
tokenizer, and with graphs that have the inputs and outputs of the model's own, but no nodes.
"""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from genai_server.images.decoding import UnusableImage
from genai_server.pooling_model import GENAI_CONFIG
from genai_server.vision_model import VisionModel

_GRAPHS = ("vision", "embedding", "decoder")
# Names of tensors for the whole prompt, which is not the request's.
_OF_PROMPT = ("input_ids", "token_type_ids")
_GRID = "image_grid_thw"
_PIXELS = "pixel_values"
# Larger files are weights, which nobody needs here.
_MAX_COPIED = 64 * 1024 * 1024
_MERGE_SIZE = 2


class ProcessedImage(NamedTuple):
    """An image as a vision model reads it."""

    # The tokens that replace the placeholder in the prompt.
    expansion: list[int]
    # Frames, rows and columns in tokens; None for models without.
    grid: tuple[int, int, int] | None
    # By the processor's names.
    tensors: dict[str, npt.NDArray[Any]]


class ImageProcessor:
    """The processor of a model directory. `folder` must be empty and stay as it is.

    Raises whatever the library raises for files that do not fit.
    """

    def __init__(self, model: VisionModel, model_dir: Path, folder: Path) -> None:
        import onnxruntime_genai

        self._library: Any = onnxruntime_genai
        self._model = model
        config = json.loads((model_dir / GENAI_CONFIG).read_bytes())
        write_stub(config, model_dir, folder)
        self._merge_size = int(config["model"]["vision"].get("spatial_merge_size") or _MERGE_SIZE)
        loaded = self._library.Model(str(folder))
        self._processor = loaded.create_multimodal_processor()
        tokenizer = self._library.Tokenizer(loaded)
        marker = tokenizer.encode(model.marker).tolist()
        placeholder = tokenizer.to_token_id(model.placeholder)
        if marker.count(placeholder) != 1:
            raise ValueError(f"the tokenizer encodes {model.marker} to {marker}, and the placeholder is {placeholder}")
        # Tokens of the marker before and after the placeholder.
        self._before = marker.index(placeholder)
        self._after = len(marker) - self._before - 1

    def process(self, png: bytes) -> ProcessedImage:
        """Prepare an image, given as a PNG file without an alpha channel. Raises UnusableImage."""
        try:
            named = self._processor(self._model.marker, images=self._library.Images.open_bytes(png))
            tensors = {name: named[name].as_numpy() for name in named.keys()}  # noqa: SIM118
        except RuntimeError as error:
            raise UnusableImage(f"is refused by the model's image processor: {error}") from None
        ids = tensors["input_ids"].reshape(-1).tolist()
        expansion = ids[self._before : len(ids) - self._after]
        if self._model.image_token_id not in expansion:
            raise UnusableImage("is too small for the model")
        tensors = {name: tensor for name, tensor in tensors.items() if name not in _OF_PROMPT}
        return ProcessedImage(expansion, self._flatten(tensors), tensors)

    def _flatten(self, tensors: dict[str, npt.NDArray[Any]]) -> tuple[int, int, int] | None:
        """Give Qwen's patches two dimensions, without padding; returns the grid of tokens."""
        if _GRID not in tensors:
            return None
        frames, rows, columns = (int(n) for n in tensors[_GRID].reshape(3))
        pixels = tensors[_PIXELS]
        pixels = pixels.reshape(-1, pixels.shape[-1])
        if len(pixels) < frames * rows * columns:
            raise ValueError(f"the processor gives {len(pixels)} patches for a grid of {frames}x{rows}x{columns}")
        tensors[_PIXELS] = pixels[: frames * rows * columns]
        return frames, rows // self._merge_size, columns // self._merge_size


def write_stub(config: dict[str, Any], model_dir: Path, folder: Path) -> None:
    """Write a directory that loads like the model's, on the CPU and without weights. Changes `config`."""
    model = config["model"]
    model["speech"] = {"filename": "", "config_filename": ""}  # without this, the library looks for its usual names
    for name in _GRAPHS:
        section = model[name]
        graph = onnx.load(str(model_dir / section["filename"]), load_external_data=False).graph
        section["filename"] = f"{name}-without-weights.onnx"
        (folder / section["filename"]).write_bytes(_stub(graph))
        for unused in ("session_options", "run_options", "adapter_filename"):
            section.pop(unused, None)
    (folder / GENAI_CONFIG).write_text(json.dumps(config), encoding="utf-8")
    for path in model_dir.iterdir():
        if path.name != GENAI_CONFIG:
            _link(path.resolve(), folder / path.name)


def _stub(graph: onnx.GraphProto) -> bytes:
    """A graph with the same inputs and outputs whose outputs are constants, of no elements if possible."""
    constants = []
    for output in graph.output:
        kind = output.type.tensor_type
        shape = [size.dim_value if size.HasField("dim_value") else 0 for size in kind.shape.dim]
        itemsize = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
        raw = bytes(int(np.prod(shape)) * itemsize)
        constants.append(TensorProto(name=output.name, data_type=kind.elem_type, dims=shape, raw_data=raw))
    for given in graph.input:
        # The processor makes pixels of the graph's type. numpy has no such numbers; the engine converts them.
        if given.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            given.type.tensor_type.elem_type = TensorProto.FLOAT
    made = onnx.helper.make_graph([], "without weights", list(graph.input), list(graph.output), initializer=constants)
    opset = onnx.helper.make_opsetid("", 21)
    found: bytes = onnx.helper.make_model(made, opset_imports=[opset], ir_version=10).SerializeToString()
    return found


def _link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except OSError:  # Windows allows it to administrators only
        if source.is_file() and source.stat().st_size <= _MAX_COPIED:
            shutil.copy2(source, target)
