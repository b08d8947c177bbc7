"""Smaller files of pictures."""

from pathlib import Path

from PIL import Image


def with_few_colours(file: Path) -> None:
    """Write a picture again with 256 colours, which are enough for text and charts and take a third of the bytes."""
    Image.open(file).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        file, optimize=True
    )
