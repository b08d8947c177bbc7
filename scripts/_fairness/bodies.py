"""Attacks on the limits of all bodies together: requests of one key whose bodies never end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

from _load.http import BrokenAnswer, Exchange, ask
from _load.server import HOST

from .clients import FORM, Client, chat, form, kept_running
from .engines import short_chat
from .scenario import Family, Place, Scenario

_MIB = 1024 * 1024
# All bodies together, and a single one; uploads of files have limits of the same sizes. The first MiB of each counts
# towards a limit of its own.
_TOGETHER, _SINGLE = 64 * _MIB, 32 * _MIB
_LARGE = _TOGETHER // 3 + _MIB - 1000
_FILES, _CHATS = "/v1/files", "/v1/chat/completions"
# Seconds between a broken connection and the next one.
_PAUSE = 0.5


async def _large_chat(place: Place) -> float:
    """Seconds to the end of a short answer to a body of 2 MiB, most of which is white space."""
    body = json.dumps(chat(place.victim.words(15), max_tokens=4)).encode()
    return await place.victim.complete(_CHATS, body + b" " * 2 * _MIB)


async def _upload(place: Place) -> float:
    """Seconds to the end of an upload of 2 MiB, which is then deleted."""
    line = {"custom_id": "1", "method": "POST", "url": _CHATS, "body": chat(place.victim.words(9))}
    file = form(json.dumps(line).encode() + b"\n" * 2 * _MIB, "input.jsonl", {"purpose": "batch"})
    began = time.perf_counter()
    response = await place.victim.answer(_FILES, file, **FORM)
    seconds = time.perf_counter() - began
    await ask(place.port, "DELETE", f"{_FILES}/{response.json()['id']}", headers=place.victim.headers())
    return seconds


@asynccontextmanager
async def _unfinished(
    client: Client, number: int, size: int, path: str, beginning: bytes, headers: Mapping[str, str]
) -> AsyncIterator[None]:
    """This many requests whose last byte never comes. Those that are refused begin again."""
    named = {"host": HOST, **client.headers(**headers), "content-length": f"{size + 1}"}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items()), "", ""]
    request = "\r\n".join(lines).encode() + beginning + b" " * (size - len(beginning))

    async def keep() -> None:
        while True:
            with suppress(BrokenAnswer, OSError):
                async with Exchange(client.port) as exchange:
                    await exchange.send_raw(request, is_whole=True)
                    await exchange.response()
            await asyncio.sleep(_PAUSE)

    async with kept_running(keep, number):
        yield


def _chats(number: int, size: int) -> Callable[[Place], AbstractAsyncContextManager[None]]:
    return lambda place: _unfinished(place.attacker, number, size, _CHATS, b'{"messages": [', {})


def _uploads(number: int, size: int) -> Callable[[Place], AbstractAsyncContextManager[None]]:
    beginning = form(b"", "input.jsonl", {"purpose": "batch"}).rpartition(b"\r\n--")[0]
    return lambda place: _unfinished(place.attacker, number, size, _FILES, beginning, FORM)


async def _nothing(place: Place) -> float:
    """No pass and no task is in the way."""
    return 0.0


def _settings(folder: Path, model: Path) -> Mapping[str, str]:
    return {
        "GENAI_MAX_BODIES_BYTES": f"{_TOGETHER}",
        "GENAI_MAX_BODY_BYTES": f"{_SINGLE}",
        "GENAI_FILES_DIR": str(folder / "files"),
        "GENAI_FILES_BYTES": f"{_TOGETHER}",
        "GENAI_FILES_BYTES_PER_KEY": f"{_TOGETHER}",
        "GENAI_MAX_FILE_BYTES": f"{_SINGLE}",
    }


BODIES = Family(
    "bodies",
    [
        Scenario("3 unfinished bodies", _large_chat, _chats(3, _LARGE)),
        Scenario("80 unfinished bodies of 1 MiB", short_chat, _chats(80, _MIB)),
        Scenario("3 unfinished uploads", _upload, _uploads(3, _LARGE), _nothing),
    ],
    _settings,
)
