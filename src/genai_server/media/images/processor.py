"""Prepares images with onnxruntime-genai's image processor for one model directory, without loading the weights."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from genai_server.media.images.decoding import UnusableImage
from genai_server.model_files.speech_and_vision import VisionModel
from genai_server.model_files.stub_directory import write_stub

_GRAPHS = ("vision", "embedding", "decoder")
# Names of tensors for the complete prompt, which is not the request's.
OF_PROMPT = ("input_ids", "token_type_ids")
_GRID = "image_grid_thw"
_PIXELS = "pixel_values"
_MERGE_SIZE = 2


class ProcessedImage(NamedTuple):
    """The inputs of a vision model for one image, or of an audio model for one clip."""

    # The tokens that replace the placeholder in the prompt.
    expansion: list[int]
    # Frames, rows and columns in tokens; None for models without.
    grid: tuple[int, int, int] | None
    # Keyed by the processor's names.
    tensors: dict[str, npt.NDArray[Any]]


class ImageProcessor:
    """onnxruntime-genai's image processor for a model directory.

    `folder` must be empty, and its contents must not be changed while the object is used. The constructor raises the
    library's own exceptions if the files of the model cannot be used.
    """

    def __init__(self, model: VisionModel, model_dir: Path, folder: Path) -> None:
        import onnxruntime_genai

        self._library: Any = onnxruntime_genai
        self._model = model
        no_speech = {"filename": "", "config_filename": ""}  # else the library looks for its usual names
        stub = write_stub(model_dir, folder, _GRAPHS, speech=no_speech)
        self._merge_size = int(stub["vision"].get("spatial_merge_size") or _MERGE_SIZE)
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
        tensors = {name: tensor for name, tensor in tensors.items() if name not in OF_PROMPT}
        return ProcessedImage(expansion, self._flatten(tensors), tensors)

    def _flatten(self, tensors: dict[str, npt.NDArray[Any]]) -> tuple[int, int, int] | None:
        """Reshape Qwen's patches to two dimensions without padding, in place, and return the grid in tokens.

        None for models without a grid.
        """
        if _GRID not in tensors:
            return None
        frames, rows, columns = (int(n) for n in tensors[_GRID].reshape(3))
        pixels = tensors[_PIXELS]
        pixels = pixels.reshape(-1, pixels.shape[-1])
        if len(pixels) < frames * rows * columns:
            raise ValueError(f"the processor gives {len(pixels)} patches for a grid of {frames}x{rows}x{columns}")
        tensors[_PIXELS] = pixels[: frames * rows * columns]
        return frames, rows // self._merge_size, columns // self._merge_size
