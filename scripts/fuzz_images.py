"""Give the reader of images damaged and odd files: cut, changed, of other types, with wrong sizes, with many pixels.

Each of them must be prepared, or refused with an error that names its field. No process may die, nothing may take
longer than a request may wait, and an intact image must be read at the end. Findings are reported with the numbers that
reproduce them. Exits with status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import base64
from contextlib import closing
from pathlib import Path

from _load.file_fuzzer import FileFuzzer, fuzz
from _load.hostile_images import hostile_image

from genai_server.config.settings import Settings
from genai_server.errors import InvalidField
from genai_server.images.reader import Images, ImageSource
from genai_server.vision_model import read_vision_model

_MODEL = Path(__file__).resolve().parents[1] / "tests" / "built_models" / "qwen-3-vl-images"
_FIELD = "images[0]"


async def send(fuzzer: FileFuzzer, numbers: range, folder: Path) -> None:
    """Send the images of these numbers."""
    model = read_vision_model(_MODEL)
    assert model is not None

    with closing(Images(Settings.model_validate({"encoder_cache_bytes": 0}), folder, fuzzer.count)) as images:

        async def read(number: int, data: bytes) -> str:
            url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
            try:
                (image,) = await images.read(model, [ImageSource(url, number % 3 == 0, _FIELD)])
            except InvalidField as error:
                return fuzzer.refused(number, error.param, error.message, _FIELD, f"{_FIELD}: the image ")
            if not image.path.stat().st_size or model.image_token_id not in image.expansion:
                fuzzer.broken.append(f"{number}: {image}")
            return "prepared"

        await fuzzer.send(numbers, read)


if __name__ == "__main__":
    fuzz(
        argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter),
        hostile_image,
        "GENAI_MEDIA_TIMEOUT",
        send,
    )
