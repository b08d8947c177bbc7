"""Decoding: formats, colours, orientation, limits, and damaged files."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from genai_server.media.images.image_header import image_type
from genai_server.media.images.processor import UnusableImage, decode, png
from tests.media.images.pictures import GREEN, RED, encoded, picture, png_header

LIMIT = 1_000_000


def _colours(data: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The colours in the middles of the left and the right half."""
    image = decode(data, LIMIT)
    assert image.mode == "RGB"
    left, right = (image.getpixel((image.width * part // 4, image.height // 2)) for part in (1, 3))
    assert isinstance(left, tuple)
    assert isinstance(right, tuple)
    return left, right


def _close(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return max(abs(one - other) for one, other in zip(found, wanted, strict=True)) <= 12


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_format_is_recognized_and_decoded(format: str) -> None:
    data = encoded(format=format)
    assert image_type(data) == f"image/{format.lower()}"
    left, right = _colours(data)
    assert _close(left, RED)
    assert _close(right, GREEN)


@pytest.mark.parametrize("format", ["TIFF", "ICO", "PPM", "TGA"])
def test_other_format_is_refused(format: str) -> None:
    with pytest.raises(UnusableImage, match="is not a PNG, JPEG, WebP, GIF or BMP file"):
        decode(encoded(format=format), LIMIT)
    assert image_type(encoded(format=format)) is None


def test_animation_gives_its_first_frame() -> None:
    for format in ("GIF", "WEBP", "PNG"):
        frames = [Image.new("RGB", (8, 8), colour) for colour in ((0, 0, 255), (255, 255, 0))]
        data = encoded(frames[0], format, save_all=True, append_images=frames[1:])
        assert _close(_colours(data)[0], (0, 0, 255))


def test_transparent_pixels_become_white() -> None:
    image = picture().convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 0, 32, 48))
    for format in ("PNG", "WEBP"):
        left, right = _colours(encoded(image, format))
        assert _close(left, (255, 255, 255))
        assert _close(right, GREEN)
    grey = Image.new("LA", (8, 8), (0, 127))
    assert _close(_colours(encoded(grey))[0], (128, 128, 128))


def test_transparent_colour_of_a_palette_becomes_white() -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 0, 255])
    image.paste(2, (4, 0, 8, 8))
    for format in ("PNG", "GIF"):
        assert _colours(encoded(image, format, transparency=1)) == ((255, 255, 255), (0, 0, 255))


def test_cmyk_becomes_rgb() -> None:
    left, right = _colours(encoded(picture().convert("CMYK"), "JPEG", quality=95))
    assert _close(left, RED)
    assert _close(right, GREEN)


@pytest.mark.parametrize(("value", "grey"), [(0, 0), (257 * 100, 100), (65535, 255)])
def test_grey_of_16_bits_keeps_its_brightness(value: int, grey: int) -> None:
    data = encoded(Image.fromarray(np.full((8, 8), value, np.uint16)))
    assert _colours(data)[0] == (grey, grey, grey)


@pytest.mark.parametrize("mode", ["1", "L"])
def test_grey_becomes_rgb(mode: str) -> None:
    assert _colours(encoded(Image.new(mode, (8, 8), 255)))[0] == (255, 255, 255)


@pytest.mark.parametrize(("orientation", "corner"), [(1, 0), (2, 1), (3, 3), (4, 2), (5, 0), (6, 1), (7, 3), (8, 2)])
def test_image_is_turned_upright(orientation: int, corner: int) -> None:
    image = Image.new("RGB", (96, 48), "white")
    image.paste(RED, (0, 0, 24, 24))
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode(encoded(image, "JPEG", exif=exif, quality=95), LIMIT)
    assert found.size == ((96, 48) if orientation < 5 else (48, 96))
    right, bottom = found.width - 6, found.height - 6
    corners = [found.getpixel(place) for place in ((6, 6), (right, 6), (6, bottom), (right, bottom))]
    assert [number for number, colour in enumerate(corners) if _close(colour, RED)] == [corner]


def test_damaged_orientation_is_ignored() -> None:
    assert decode(encoded(format="JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), LIMIT).size == (64, 48)


@pytest.mark.parametrize(("width", "height"), [(1001, 1000), (2**31 - 1, 2**31 - 1), (60_000, 60_000)])
def test_too_many_pixels_are_refused_with_the_size(width: int, height: int) -> None:
    with pytest.raises(UnusableImage) as refused:
        decode(png_header(width, height), LIMIT)
    wanted = f"may have at most 1000000 pixels (GENAI_MAX_IMAGE_PIXELS), given {width}x{height}"
    assert str(refused.value) == wanted


@pytest.mark.parametrize("format", ["GIF", "WEBP", "BMP", "JPEG"])
@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0"}])
def test_size_is_read_before_the_pixels(format: str, options: dict[str, bool]) -> None:
    data = encoded(picture(300, 200), format, **options if format == "WEBP" else {})
    with pytest.raises(UnusableImage, match="given 300x200"):
        decode(data[: len(data) - 20], 300 * 200 - 1)
    assert decode(data, 300 * 200).size == (300, 200)


def test_image_without_pixels_is_refused() -> None:
    for data in (png_header(0, 5), b"GIF89a" + bytes(7) + b";"):
        with pytest.raises(UnusableImage):
            decode(data, LIMIT)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_cut_image_is_refused(format: str) -> None:
    data = encoded(Image.effect_noise((64, 64), 90).convert("RGB"), format)
    for length in (0, 1, 12, len(data) // 2):
        with pytest.raises(UnusableImage, match="is damaged|is not a"):
            decode(data[:length], LIMIT)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
def test_cut_image_is_named_as_such(format: str, share: float) -> None:
    data = encoded(Image.effect_noise((64, 64), 90).convert("RGB"), format)
    with pytest.raises(UnusableImage, match="truncated|cut off"):
        decode(data[: int(share * len(data))], LIMIT)


def test_low_detail_has_512_pixels_on_its_longer_side() -> None:
    assert decode(encoded(picture(2048, 100)), LIMIT, low_detail=True).size == (512, 25)
    assert decode(encoded(picture(300, 200)), LIMIT, low_detail=True).size == (300, 200)


def test_very_large_image_is_reduced() -> None:
    assert decode(encoded(Image.new("L", (8000, 4000))), 32_000_000).size == (5656, 2828)


def test_png_for_the_library_has_the_same_pixels() -> None:
    image = picture(7, 5)
    found = Image.open(BytesIO(png(image)))
    assert (found.format, found.mode, found.size) == ("PNG", "RGB", (7, 5))
    assert np.array_equal(np.asarray(found), np.asarray(image))
