"""Decodes untrusted images. Must only run in a worker process, which may crash or be killed without harm."""

import struct
import warnings
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

from genai_server.media.images.image_header import IMAGE_FORMATS, MAX_KEPT_PIXELS, image_type, webp_size

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
    """The image cannot be used. The message says why, as the rest of a sentence that begins with "the image"."""


class CostsMore(Exception):
    """The image has more pixels than the request was charged for, because the header of the file declares fewer."""

    def __init__(self, pixels: int) -> None:
        super().__init__(pixels)
        self.pixels = pixels


def decode(data: bytes, max_pixels: int, *, low_detail: bool = False, paid_pixels: int | None = None) -> Image.Image:
    """Return an image as RGB without an alpha channel, turned upright; of an animation, the first frame.

    `low_detail` reduces the image. The size is checked before the pixels are decoded. Raises UnusableImage, also for
    more than `max_pixels`, and CostsMore for more than `paid_pixels`, the number that the request was charged for.
    """
    with warnings.catch_warnings(action="ignore"):  # of odd metadata
        return _decode(data, max_pixels, max_pixels if paid_pixels is None else paid_pixels, low_detail=low_detail)


def png(image: Image.Image) -> bytes:
    """Return an RGB image as a PNG file, without metadata and uncompressed because it is read once in the same
    process.
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
        raise CostsMore(pixels)
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
    """Return the width and height to which an image must be reduced; None if it is small enough."""
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
    """Convert an image to RGB, on a white background where it is transparent, and reduce it to the size `largest`.

    It is reduced as early as its color mode allows, because each conversion of a large image takes as long as decoding.
    """
    if image.mode.startswith("I;16"):
        # 16 bits, of which a conversion would keep the lower 8. This is the quotient by 257, rounded.
        wide = np.asarray(image)
        image = Image.fromarray(((wide - (wide >> 8) + 128) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        numbers = np.asarray(image).astype(np.float32)
        image = Image.fromarray((numbers.clip(0, 65535) / 257).round().astype(np.uint8))
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
