"""Main program of a worker process that decodes untrusted images or audio clips of chats and prepares them as input of
a model. The process may crash or be killed without harm to the server.

The process's argument is a specification in JSON: the model's folder and limits. A question, a JSON object, comes with
the bytes of the image or clip, and names the file to which the model's inputs are written. The answer has the tokens
that stand for the image in a prompt, and its grid: frames, rows and columns in tokens. Otherwise the answer says why
the image is refused, how many pixels or bytes it has if these exceed the limits of the question, or why the file cannot
be written. The process reads no environment variables and holds no secrets.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from genai_server.media.images.processor import (
    ImageProcessor,
    MorePixelsThanDeclared,
    ProcessedImage,
    UnusableImage,
    decode,
    png,
)
from genai_server.model_files.speech_and_vision import Medium, read_vision_model
from genai_server.workers.worker_loop import Answer, answer_questions

# Maximum bytes in addition to the process's memory at its start: for anything, and for each pixel that an image may
# have. Decoding, resizing and preparing the largest image takes about half of that.
_MEMORY = 1024 * 1024 * 1024
_MEMORY_PER_PIXEL = 40
# The same for each second that an audio clip may have: samples, a file of them, and spectrograms in 32 bits.
_MEMORY_PER_SECOND = 512 * 1024
# Width and height of the image that is read at the start.
_SIZE = (64, 64)
# Bytes of a file in addition to those of the tensors: for anything, and for each of them.
_FILE_BYTES = 1024
# Decodes and prepares an image, or a small version of it, that costs at most so much.
_Process = Callable[[bytes, bool, int], ProcessedImage]


def main() -> None:
    """Main program of the worker process: prepare images or audio clips, as the parent process asks, until the parent
    exits.
    """
    spec = json.loads(sys.argv[1])

    def prepare() -> Answer:
        process = _process(spec)
        return lambda question, data: _answer(process, spec, question, data)

    takes_audio = spec["medium"] == Medium.AUDIO
    largest = _MEMORY_PER_SECOND * spec["max_seconds"] if takes_audio else _MEMORY_PER_PIXEL * spec["max_pixels"]
    answer_questions(prepare, _MEMORY + largest)


def _process(spec: dict[str, Any]) -> _Process:
    model_dir = Path(spec["model_dir"])
    model = read_vision_model(model_dir)
    if model is None:
        raise ValueError("the model takes neither images nor audio")
    with tempfile.TemporaryDirectory(dir=spec["folder"]) as folder:
        if model.medium is Medium.AUDIO:
            # Needs FFmpeg's libraries, an extra that images do not need.
            from genai_server.media.images.audio_processor import AudioProcessor

            processor_of_audio = AudioProcessor(model, model_dir, Path(folder))
            return lambda data, low_detail, max_cost: processor_of_audio.process(data, spec["max_seconds"])
        processor = ImageProcessor(model, model_dir, Path(folder))
    processor.process(png(Image.new("RGB", _SIZE)))  # one-time work is done before the first image is timed

    def process(data: bytes, low_detail: bool, max_cost: int) -> ProcessedImage:
        return processor.process(png(decode(data, spec["max_pixels"], low_detail=low_detail, paid_pixels=max_cost)))

    return process


def _answer(process: _Process, spec: dict[str, Any], question: dict[str, Any], data: bytes) -> dict[str, Any]:
    try:
        processed = process(data, question["low_detail"], question["max_cost"])
        if (num_tokens := len(processed.expansion)) > spec["max_tokens"]:
            raise UnusableImage(
                f"may have at most {spec['max_tokens']} tokens (GENAI_MAX_MEDIA_TOKENS), given {num_tokens}"
            )
    except MorePixelsThanDeclared as error:
        return {"cost": error.pixels}
    except UnusableImage as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "needs more memory than it may take"}
    num_bytes = sum(tensor.nbytes + _FILE_BYTES for tensor in processed.tensors.values()) + _FILE_BYTES
    if num_bytes > question["max_bytes"]:
        return {"bytes": num_bytes}
    try:
        with Path(question["path"]).open("wb") as file:
            np.savez(file, **processed.tensors)  # type: ignore[arg-type]  # the stub takes the names for options
    except OSError as error:
        return {"unavailable": error.strerror or type(error).__name__}
    return {"expansion": processed.expansion, "grid": processed.grid}


if __name__ == "__main__":
    main()
