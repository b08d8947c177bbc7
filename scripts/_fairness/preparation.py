"""Attacks on the processes that prepare images, recordings and grammars."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

import av
import httpx
import numpy as np
from _load.server import REPOSITORY
from PIL import Image

from .clients import CHATS, Make, Place, Request, answer, chat, keep_asking
from .scenario import Ask, Attack, Family, Scenario

_VISION, _SPEECH = (REPOSITORY / "models" / name for name in ("demo-vision", "demo-speech"))
# Requests at once, images of each, and the side of one in pixels.
_REQUESTS, _IMAGES, _SIDE = 4, 16, 7000
_PHOTOGRAPHS = 60
_RATE = 16_000
# Long recordings at once, and their seconds.
_RECORDINGS, _SECONDS = 5, 7000
# Seconds of the longest recording that is decoded in turn with other tasks (genai_server.media.audio.decoding).
_SHORT_SECONDS = 110
# Objects in a large schema, which has 85 kB.
_OBJECTS = 460
_SCHEMAS = 40


@cache
def _black() -> bytes:
    """A PNG file of about 6 kB with 49 million pixels of one bit each."""
    return _written(Image.new("1", (_SIDE, _SIDE)))


@cache
def _photograph() -> bytes:
    """A JPEG file of 12 million pixels."""
    noise = np.random.default_rng(1).integers(0, 256, (150, 200, 3), np.uint8)
    return _written(Image.fromarray(noise).resize((4000, 3000), Image.Resampling.BICUBIC), "JPEG")


def _drawing() -> bytes:
    """A PNG file of a square on a plain background."""
    image = Image.new("RGB", (160, 160), tuple(random.randbytes(3)))
    corner = random.randrange(100)
    image.paste(tuple(random.randbytes(3)), (corner, corner, corner + 50, corner + 50))
    return _written(image)


def _written(image: Image.Image, format: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


@cache
def _silence(seconds: int) -> bytes:
    """A FLAC file of silence; 7,000 s have 1.3 MB."""
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as container:
        stream: Any = container.add_stream("flac", rate=_RATE)
        stream.layout = "mono"
        for second in range(0, seconds, 50):
            samples = np.zeros((1, 50 * _RATE), np.int16)
            frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            frame.sample_rate, frame.pts = _RATE, second * _RATE
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@cache
def _speech() -> bytes:
    """A WAV file of some seconds of speech."""
    return (_SPEECH / "example.wav").read_bytes()


def _anew(file: bytes) -> bytes:
    """The file with something behind its end, so that no other file equals it."""
    return file + random.randbytes(8)


def _about(files: Sequence[bytes]) -> Request:
    """A chat about new images, whose type is told by their first bytes."""
    urls = [f"data:image/png;base64,{base64.b64encode(_anew(file)).decode()}" for file in files]
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content.append({"type": "text", "text": f"{random.randrange(1000)}: which color?"})
    return chat(content, model="vision", max_tokens=4)


def _structured(num_objects: int) -> Request:
    """A chat whose answer has a new schema of this size."""
    name = random.randbytes(4).hex()
    item = {"type": "string", "pattern": f"^{name}[a-z]{{3,8}}$"}
    fields = {"id": item, "date": {"type": "string", "format": "date"}}
    entry = {"type": "object", "properties": fields, "required": ["id", "date"]}
    names = [f"{name}-{number}" for number in range(num_objects)]
    schema = {"type": "object", "properties": dict.fromkeys(names, entry), "required": names}
    format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return chat("Answer.", model="text", max_tokens=4, response_format=format, ignore_eos=False)


def _transcribed(file: bytes) -> Request:
    """The transcript of a new recording."""
    files = {"file": ("recording", _anew(file))}
    return {"url": "/v1/audio/transcriptions", "files": files, "data": {"model": "speech"}}


def _asks(make: Make) -> Ask:
    """Such a request of the key that behaves."""
    return lambda place: answer(place.victim, make())


def _asked(clients: int, make: Make) -> Attack:
    """This many clients of the attacker, with such requests."""
    return lambda place: keep_asking(place, clients, make)


@asynccontextmanager
async def _batch_of_photographs(place: Place) -> AsyncIterator[None]:
    """A batch that begins before the first request and is cancelled at the end."""
    lines = (
        {"custom_id": f"{number}", "method": "POST", "url": CHATS, "body": _about([_photograph()])["json"]}
        for number in range(_PHOTOGRAPHS)
    )
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    files = {"file": ("photographs.jsonl", content)}
    file = (await place.attacker.post("/v1/files", files=files, data={"purpose": "batch"})).json()
    body = {"input_file_id": file["id"], "endpoint": CHATS, "completion_window": "24h"}
    batch = (await place.attacker.post("/v1/batches", json=body)).json()
    try:
        yield
    finally:
        with suppress(httpx.HTTPError):
            await place.attacker.post(f"/v1/batches/{batch['id']}/cancel", json={})


PREPARATION = Family(
    "preparation",
    [
        Scenario(
            f"{_REQUESTS} requests of {_IMAGES} large images",
            _asks(lambda: _about([_drawing()])),
            _asked(_REQUESTS, lambda: _about([_black()] * _IMAGES)),
            _asks(lambda: _about([_black()])),
            _REQUESTS,
        ),
        Scenario(
            "a batch of photographs",
            _asks(lambda: _about([_drawing()])),
            _batch_of_photographs,
            _asks(lambda: _about([_photograph()])),
        ),
        Scenario(
            f"{_RECORDINGS} recordings of two hours",
            _asks(lambda: _transcribed(_speech())),
            _asked(_RECORDINGS, lambda: _transcribed(_silence(_SECONDS))),
            _asks(lambda: _transcribed(_silence(_SHORT_SECONDS))),
            _RECORDINGS,
        ),
        Scenario(
            f"{_SCHEMAS} large schemas",
            _asks(lambda: _structured(2)),
            _asked(_SCHEMAS, lambda: _structured(_OBJECTS)),
            _asks(lambda: _structured(_OBJECTS)),
        ),
    ],
    {
        "GENAI_MODELS": f"text={{model}},vision={_VISION},speech={_SPEECH}",
        "GENAI_MODEL_DIR": "",
        "GENAI_FILES_DIR": "{folder}/files",
        # All images of four requests may wait.
        "GENAI_MAX_REQUEST_PIXELS": f"{_IMAGES * _SIDE**2}",
        "GENAI_MAX_WAITING_PIXELS": f"{_REQUESTS * _IMAGES * _SIDE**2}",
    },
)
