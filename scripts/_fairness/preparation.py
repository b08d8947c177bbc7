"""Attacks on the processes that prepare images, recordings and grammars."""

from __future__ import annotations

import base64
import io
import json
import random
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from typing import Any

import av
import numpy as np
from _load.http import BrokenAnswer
from _load.server import REPOSITORY
from PIL import Image

from .clients import CHATS, Body, Client, Tally, chat, form, keep_asking, written
from .scenario import Attack, Family, Place, Scenario

_VISION, _SPEECH = (REPOSITORY / "models" / name for name in ("demo-vision", "demo-speech"))
_TRANSCRIPTIONS = "/v1/audio/transcriptions"
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
# How often the largest task is measured.
_TASKS = 3


@cache
def _black() -> bytes:
    """A PNG file of about 6 kB with 49 million pixels of one bit each."""
    file = io.BytesIO()
    Image.new("1", (_SIDE, _SIDE)).save(file, "PNG")
    return file.getvalue()


@cache
def _photograph() -> bytes:
    """A JPEG file of 12 million pixels."""
    noise = np.random.default_rng(1).integers(0, 256, (150, 200, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((4000, 3000), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
    return file.getvalue()


def _drawing(chance: random.Random) -> bytes:
    """A PNG file of a square on a plain background."""
    image = Image.new("RGB", (160, 160), tuple(chance.choices(range(256), k=3)))
    corner = chance.randrange(100)
    image.paste(tuple(chance.choices(range(256), k=3)), (corner, corner, corner + 50, corner + 50))
    file = io.BytesIO()
    image.save(file, "PNG")
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


def _anew(chance: random.Random, file: bytes) -> bytes:
    """The file with something behind its end, so that no other file equals it."""
    return file + chance.randbytes(8)


def _schema(chance: random.Random, num_objects: int) -> dict[str, Any]:
    """A schema that no other one equals."""
    name = chance.randbytes(4).hex()
    item = {"type": "string", "pattern": f"^{name}[a-z]{{3,8}}$"}
    entry: dict[str, Any] = {"type": "object", "properties": {"id": item, "date": {"type": "string", "format": "date"}}}
    names = [f"{name}-{number}" for number in range(num_objects)]
    return {
        "type": "object",
        "properties": dict.fromkeys(names, {**entry, "required": ["id", "date"]}),
        "required": names,
    }


def _pictured(chance: random.Random, files: Sequence[bytes], **fields: Any) -> dict[str, Any]:
    """The body of a chat about images."""
    # Their type is told by their first bytes.
    urls = [f"data:image/png;base64,{base64.b64encode(file).decode()}" for file in files]
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content.append({"type": "text", "text": f"{chance.randrange(1000)}: which color?"})
    return {"model": "vision", **chat("", max_tokens=4, **fields), "messages": [{"role": "user", "content": content}]}


def _formatted(chance: random.Random, num_objects: int) -> dict[str, Any]:
    """The body of a chat whose answer has a format."""
    schema = {"name": "answer", "schema": _schema(chance, num_objects)}
    fields = {"response_format": {"type": "json_schema", "json_schema": schema}, "ignore_eos": False}
    return {"model": "text", **chat("Answer.", max_tokens=4), **fields}


Make = Callable[[random.Random], Mapping[str, Any]]


def _drawn(chance: random.Random) -> Mapping[str, Any]:
    """A chat about a new small picture."""
    return _pictured(chance, [_drawing(chance)])


def _blackened(number: int) -> Make:
    """A chat about this many black images."""
    return lambda chance: _pictured(chance, [_anew(chance, _black()) for _ in range(number)])


def _photographed(chance: random.Random) -> Mapping[str, Any]:
    """A chat about a photograph."""
    return _pictured(chance, [_anew(chance, _photograph())])


def _structured(num_objects: int) -> Make:
    """A chat whose answer has a new schema of this size."""
    return lambda chance: _formatted(chance, num_objects)


def _answered(make: Make) -> Callable[[Place], Awaitable[float]]:
    """Seconds to the end of a short answer to such a chat."""
    return lambda place: place.victim.complete(CHATS, written(make(place.victim.chance)))


def _transcribed(make: Callable[[random.Random], Body]) -> Callable[[Place], Awaitable[float]]:
    """Seconds to the transcript of such a recording."""
    return lambda place: place.victim.complete(_TRANSCRIPTIONS, make(place.victim.chance))


def _spoken(chance: random.Random) -> Body:
    return form(_anew(chance, _speech()), "speech.wav", model="speech")


def _silent(seconds: int) -> Callable[[object], Body]:
    return lambda _: form(_silence(seconds), "silence.flac", model="speech")


def _asked(clients: int, make: Callable[[random.Random], Body | Mapping[str, Any]], path: str = CHATS) -> Attack:
    """This many clients of the attacker, with such bodies."""

    def attack(place: Place) -> AbstractAsyncContextManager[None]:
        return keep_asking(place.attacker, place.tally, clients, lambda: make(place.attacker.chance), path)

    return attack


@asynccontextmanager
async def _batch_of_photographs(place: Place) -> AsyncIterator[None]:
    """A batch that begins before the first request and is cancelled at the end."""
    attacker: Client = place.attacker
    lines = (
        {"custom_id": f"{number}", "method": "POST", "url": CHATS, "body": _photographed(attacker.chance)}
        for number in range(_PHOTOGRAPHS)
    )
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    file = (await attacker.ask("/v1/files", form(content, "photographs.jsonl", purpose="batch"))).json()
    body = {"input_file_id": file["id"], "endpoint": CHATS, "completion_window": "24h"}
    batch = (await attacker.ask("/v1/batches", written(body))).json()
    try:
        yield
    finally:
        with suppress(BrokenAnswer, OSError):
            await attacker.ask(f"/v1/batches/{batch['id']}/cancel", written({}))


def _largest(task: Callable[[Place], Awaitable[float]]) -> Callable[[Place], Awaitable[float]]:
    """The allowance for a task: its seconds while nothing else is present."""

    async def seconds(place: Place) -> float:
        return statistics.median([await task(place) for _ in range(_TASKS)])

    return seconds


def _waits(number: int) -> Callable[[Tally], bool]:
    """Whether some of this many requests, which came earlier, are not answered yet."""
    return lambda tally: tally.answered + tally.refused < number


PREPARATION = Family(
    "preparation",
    [
        Scenario(
            f"{_REQUESTS} requests of {_IMAGES} large images",
            _answered(_drawn),
            _asked(_REQUESTS, _blackened(_IMAGES)),
            _largest(_answered(_blackened(1))),
            _waits(_REQUESTS),
        ),
        Scenario(
            "a batch of photographs", _answered(_drawn), _batch_of_photographs, _largest(_answered(_photographed))
        ),
        Scenario(
            f"{_RECORDINGS} recordings of two hours",
            _transcribed(_spoken),
            _asked(_RECORDINGS, _silent(_SECONDS), _TRANSCRIPTIONS),
            _largest(_transcribed(_silent(_SHORT_SECONDS))),
            _waits(_RECORDINGS),
        ),
        Scenario(
            f"{_SCHEMAS} large schemas",
            _answered(_structured(2)),
            _asked(_SCHEMAS, _structured(_OBJECTS)),
            _largest(_answered(_structured(_OBJECTS))),
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
