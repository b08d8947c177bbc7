"""The image reader: a process that decodes untrusted images and prepares them for a vision model.

Its argument is a specification in JSON. A question comes with the image's bytes, and is answered with its expansion and
grid, or why it is refused. The process reads no environment and holds no secrets.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from genai_server.images.decoding import UnusableImage, decode, png
from genai_server.images.processor import ImageProcessor
from genai_server.vision_model import read_vision_model
from genai_server.worker_loop import Answer, answer_questions

# Maximum bytes in addition to the process's memory at its start: for anything, and for each pixel that an image may
# have. Decoding, resizing and preparing the largest image takes about half of that.
_MEMORY = 1024 * 1024 * 1024
_MEMORY_PER_PIXEL = 40
# Of the image that is read at the start.
_SIZE = (64, 64)


def main() -> None:
    """Read images until the parent exits."""
    spec = json.loads(sys.argv[1])

    def prepare() -> Answer:
        processor = _processor(spec)
        return lambda question, data: _answer(processor, spec, question, data)

    answer_questions(prepare, _MEMORY + _MEMORY_PER_PIXEL * spec["max_pixels"])


def _processor(spec: dict[str, Any]) -> ImageProcessor:
    model = read_vision_model(Path(spec["model_dir"]))
    if model is None:
        raise ValueError("the model takes no images")
    with tempfile.TemporaryDirectory(dir=spec["folder"]) as folder:
        processor = ImageProcessor(model, Path(spec["model_dir"]), Path(folder))
    processor.process(png(Image.new("RGB", _SIZE)))  # one-time work is done before the first image is timed
    return processor


def _answer(processor: ImageProcessor, spec: dict[str, Any], question: dict[str, Any], data: bytes) -> dict[str, Any]:
    try:
        image = png(decode(data, spec["max_pixels"], low_detail=question["low_detail"]))
        found = processor.process(image)
        if (num_tokens := len(found.expansion)) > spec["max_tokens"]:
            raise UnusableImage(
                f"may have at most {spec['max_tokens']} tokens (GENAI_MAX_IMAGE_TOKENS), given {num_tokens}"
            )
    except UnusableImage as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "needs more memory than an image may take"}
    with Path(question["path"]).open("wb") as file:
        np.savez(file, **found.tensors)  # type: ignore[arg-type]  # the stub takes the names for options
    return {"expansion": found.expansion, "grid": found.grid}


if __name__ == "__main__":
    main()
