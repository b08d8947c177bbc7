"""Sizes of images by the heads of their files."""

import random
import struct

import pytest
from PIL import Image

from genai_server.media.images.image_header import declared_size
from tests.media.images.pictures import encoded, picture, png_header


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("size", [(1, 1), (300, 200), (65, 4000)])
def test_size_is_what_the_decoder_finds(format: str, size: tuple[int, int]) -> None:
    assert declared_size(encoded(picture(*size), format)) == size


@pytest.mark.parametrize("options", [{"lossless": True}, {"exif": b"Exif\0\0"}, {"quality": 5}])
def test_all_forms_of_webp(options: dict[str, bool]) -> None:
    assert declared_size(encoded(picture(300, 200), "WEBP", **options)) == (300, 200)


@pytest.mark.parametrize(
    "options", [{"progressive": True}, {"exif": b"Exif\0\0" + bytes(2000)}, {"comment": b"\xff\xc0"}]
)
def test_all_forms_of_jpeg(options: dict[str, bool]) -> None:
    assert declared_size(encoded(picture(300, 200), "JPEG", **options)) == (300, 200)


def test_bmp_from_top_to_bottom_and_old_ones() -> None:
    data = bytearray(encoded(picture(30, 20), "BMP"))
    data[22:26] = struct.pack("<i", -20)
    assert declared_size(bytes(data)) == (30, 20)
    assert declared_size(b"BM" + bytes(12) + struct.pack("<IHHHH", 12, 30, 20, 1, 24)) == (30, 20)


def test_size_of_large_images_needs_no_pixels() -> None:
    assert declared_size(png_header(2**31 - 1, 60_000)) == (2**31 - 1, 60_000)


def test_other_and_cut_files_have_no_size() -> None:
    assert declared_size(b"text") is None
    assert declared_size(encoded(format="TIFF")) is None
    for format in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        assert declared_size(encoded(format=format)[:7]) is None


def test_no_file_is_an_error() -> None:
    chance = random.Random(0)
    for format in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        whole = encoded(Image.effect_noise((40, 40), 90).convert("RGB"), format)
        for _ in range(300):
            data = bytearray(whole[: chance.randint(0, len(whole))])
            for _ in range(chance.randint(0, 8)):
                if data:
                    data[chance.randrange(min(len(data), 64))] = chance.randrange(256)
            size = declared_size(bytes(data))
            assert size is None or min(size) >= 0
