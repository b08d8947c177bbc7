"""The image reader: a process that decodes untrusted images and prepares them for a vision model.

Its argument is a Spec in JSON. Standard input carries questions and stays open while the API process lives: a line of
JSON, then the image's bytes. Standard output carries one line of JSON when the process is ready, and then one for each
image.

The process reads no environment and holds no secrets.
"""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from genai_server.child_process import ignore_group_signals, limit_memory, private_standard_output
from genai_server.errors import in_one_line
from genai_server.images.decoding import UnusableImage, decode, png
from genai_server.images.processor import ImageProcessor
from genai_server.process_memory import release_large_blocks_at_once, share_heaps
from genai_server.vision_model import read_vision_model

# Maximum bytes in addition to the process's memory at its start: for anything, and for each pixel that an image may
# have. Decoding, resizing and preparing the largest image takes about half of that.
_MEMORY = 1024 * 1024 * 1024
_MEMORY_PER_PIXEL = 40
# Of the image that is read at the start.
_SIZE = (64, 64)


def main() -> None:
    """Read images until the parent exits."""
    answers = private_standard_output()
    ignore_group_signals()
    release_large_blocks_at_once()
    share_heaps()
    questions: SimpleQueue[tuple[dict[str, Any], bytes]] = SimpleQueue()
    threading.Thread(target=_read, args=(json.loads(sys.argv[1]), questions, answers), daemon=True).start()
    for line in sys.stdin.buffer:
        question = json.loads(line)
        questions.put((question, sys.stdin.buffer.read(question["size"])))
    os._exit(0)  # sys.exit would wait for the other thread, which may be in native code for long


def _read(spec: dict[str, Any], questions: "SimpleQueue[tuple[dict[str, Any], bytes]]", answers: BinaryIO) -> None:
    try:
        processor = _processor(spec)
    except BaseException as error:
        _tell(answers, {"failed": in_one_line(error)})
        return
    limit_memory(_MEMORY + _MEMORY_PER_PIXEL * spec["max_pixels"])
    _tell(answers, {})
    # A library may print its input to standard error; logs must not quote requests.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        question, data = questions.get()
        _tell(answers, _answer(processor, spec, question, data))


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


def _tell(answers: BinaryIO, found: dict[str, Any]) -> None:
    answers.write(json.dumps(found).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
