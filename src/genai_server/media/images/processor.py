"""Decodes untrusted images (`decode`), and prepares them as input of a vision model with onnxruntime-genai's image
processor (`ImageProcessor`), without loading the model's weights.

This must only run in a worker process (process.py), which may crash or be killed without harm to the server.
"""

import struct
import warnings
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from genai_server.media.images.image_header import IMAGE_FORMATS, MAX_KEPT_PIXELS, image_type, webp_size
from genai_server.model_files.speech_and_vision import VisionModel
from genai_server.model_files.stub_directory import write_stub

# Others have rare, old decoders. JPEG files with several pictures become MPO, of which the first one is read.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# The longer side of an image in low detail.
_LOW_DETAIL = 512
# Before an image is resized, its pixels are averaged in squares to at least this many times the size.
_GAP = 2.0
_WHITE = (255, 255, 255, 255)
_ORIENTATION = 0x0112
# How to turn an image back, by the value of EXIF's orientation.
_TRANSPOSED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnusableImage(Exception):
    """Error: an image or audio clip cannot be used. The message says why, as the rest of a sentence that begins with
    "the image".
    """


class MorePixelsThanDeclared(Exception):
    """Error: an image has more pixels than the request was charged for, because the header of its file declares fewer.

    `pixels` is the actual number.
    """

    def __init__(self, pixels: int) -> None:
        super().__init__(pixels)
        self.pixels = pixels


def decode(data: bytes, max_pixels: int, *, low_detail: bool = False, paid_pixels: int | None = None) -> Image.Image:
    """Decode an image file and return it as RGB without an alpha channel, turned upright; of an animation, the first
    frame.

    Very large images are reduced, and with `low_detail` all images to a small size. The number of pixels is checked
    before they are decoded. Raises UnusableImage if the file cannot be decoded or has more than `max_pixels` pixels,
    and MorePixelsThanDeclared if it has more than `paid_pixels`, the number that the request was charged for (None for
    no such limit).
    """
    with warnings.catch_warnings(action="ignore"):  # of odd metadata
        return _decode(data, max_pixels, max_pixels if paid_pixels is None else paid_pixels, low_detail=low_detail)


def png(image: Image.Image) -> bytes:
    """Return an RGB image as the bytes of a PNG file, which onnxruntime-genai reads.

    It has no metadata and is not compressed, because it is read once in the same process.
    """
    pixels = np.asarray(image)
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # a row begins with its filter: 0
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.data, 0)), (b"IEND", b""))
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, content in chunks:
        parts += [
            struct.pack(">I", len(content)),
            name,
            content,
            struct.pack(">I", zlib.crc32(content, zlib.crc32(name))),
        ]
    return b"".join(parts)


def _decode(data: bytes, max_pixels: int, paid_pixels: int, *, low_detail: bool) -> Image.Image:
    Image.MAX_IMAGE_PIXELS = None  # would raise without the image's size
    if (size := webp_size(data)) is not None:  # this decoder allocates its pixels before it returns the size
        _check_size(size, max_pixels)
    try:
        image: Image.Image = Image.open(BytesIO(data), formats=_FORMATS)
    except Exception:  # a decoder may raise anything
        if (kind := image_type(data)) is not None:
            name = kind.removeprefix("image/")
            raise UnusableImage(f"is damaged: it begins as a {name} file, and is cut off or wrong after that") from None
        raise UnusableImage(f"is not a {IMAGE_FORMATS} file") from None
    _check_size(image.size, max_pixels)
    if (pixels := image.width * image.height) > paid_pixels:
        raise MorePixelsThanDeclared(pixels)
    Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        largest = _largest_size(image, low_detail=low_detail)
        if largest is not None:  # JPEG's decoder leaves out pixels at no cost
            image.draft(None, (int(_GAP * largest[0]), int(_GAP * largest[1])))
        image.load()
        _check_size(image.size, max_pixels)
        orientation = _orientation(image)
        image = _rgb(image, largest)
        if orientation in _TRANSPOSED:
            image = image.transpose(_TRANSPOSED[orientation])
    except UnusableImage:
        raise
    except Exception as error:
        raise UnusableImage(f"is damaged: {str(error) or type(error).__name__}") from None
    return image


def _largest_size(image: Image.Image, *, low_detail: bool) -> tuple[int, int] | None:
    """Return the width and height in pixels to which an image must be reduced; None if it is small enough.

    With `low_detail`, the limit is smaller.
    """
    width, height = image.size
    if low_detail:
        return (_LOW_DETAIL, _LOW_DETAIL) if max(width, height) > _LOW_DETAIL else None
    factor = (MAX_KEPT_PIXELS / (width * height)) ** 0.5
    return (max(1, int(width * factor)), max(1, int(height * factor))) if factor < 1 else None


def _reduce(image: Image.Image, largest: tuple[int, int] | None) -> None:
    if largest is not None:
        image.thumbnail(largest, reducing_gap=_GAP)


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise UnusableImage(f"may have at most {max_pixels} pixels (GENAI_MAX_IMAGE_PIXELS), given {width}x{height}")
    if not width or not height:
        raise UnusableImage(f"must have pixels, given {width}x{height}")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata; the pixels are whole
        return 1


def _rgb(image: Image.Image, largest: tuple[int, int] | None) -> Image.Image:
    """Return an image as RGB, on a white background where it is transparent, reduced to the size `largest` (None:
    unchanged).

    It is reduced as early as its color mode allows, because each conversion of a large image takes as long as decoding.
    """
    if image.mode.startswith("I;16"):
        # 16 bits, of which a conversion would keep the lower 8. This is the quotient by 257, rounded.
        wide = np.asarray(image)
        image = Image.fromarray(((wide - (wide >> 8) + 128) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        values = np.asarray(image).astype(np.float32)
        image = Image.fromarray((values.clip(0, 65535) / 257).round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        _reduce(image, largest)
        image = Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image)
    elif image.mode in ("1", "L"):
        image = image.convert("L")
    elif image.mode != "RGB":
        image = image.convert("RGB")
    _reduce(image, largest)
    return image.convert("RGB")


_GRAPHS = ("vision", "embedding", "decoder")
# Names of tensors for the complete prompt, which is not the request's.
PROMPT_TENSORS = ("input_ids", "token_type_ids")
_GRID = "image_grid_thw"
_PIXELS = "pixel_values"
_MERGE_SIZE = 2


class ProcessedImage(NamedTuple):
    """The inputs of a vision model for one image, or of an audio model for one clip.

    `expansion` are the tokens that replace the placeholder in the prompt. `grid` is the number of frames, rows and
    columns in tokens; None for models without a grid. `tensors` are the input tensors, by onnxruntime-genai's names.
    """

    # The tokens that replace the placeholder in the prompt.
    expansion: list[int]
    # Frames, rows and columns in tokens; None for models without.
    grid: tuple[int, int, int] | None
    # Keyed by the processor's names.
    tensors: dict[str, npt.NDArray[Any]]


class ImageProcessor:
    """Prepares images for the vision model in the folder `model_dir`, with onnxruntime-genai's image processor.

    `folder` must be empty; the files that the library needs are written there, and must not be changed while the object
    is used. The constructor raises the library's own exceptions if the files of the model cannot be used, and
    ValueError if the model's placeholder is not a token.
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
        """Return the model's inputs for an image, given as a PNG file without an alpha channel.

        Raises UnusableImage if the model's processor refuses the image or it is too small.
        """
        try:
            named = self._processor(self._model.marker, images=self._library.Images.open_bytes(png))
            tensors = {name: named[name].as_numpy() for name in named.keys()}  # noqa: SIM118
        except RuntimeError as error:
            raise UnusableImage(f"is refused by the model's image processor: {error}") from None
        ids = tensors["input_ids"].reshape(-1).tolist()
        expansion = ids[self._before : len(ids) - self._after]
        if self._model.image_token_id not in expansion:
            raise UnusableImage("is too small for the model")
        tensors = {name: tensor for name, tensor in tensors.items() if name not in PROMPT_TENSORS}
        return ProcessedImage(expansion, self._flatten(tensors), tensors)

    def _flatten(self, tensors: dict[str, npt.NDArray[Any]]) -> tuple[int, int, int] | None:
        """Reshape the patches of Qwen's models in `tensors` to two dimensions without padding, and return their grid.

        `tensors` is changed. The grid is the number of frames, rows and columns in tokens; None for models without a
        grid, whose tensors stay unchanged.
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
