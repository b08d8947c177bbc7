"""Attacks on the limits of all bodies together: requests of one key whose bodies never end."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AbstractAsyncContextManager, suppress

from _load.http import BrokenAnswer, exchange, request

from .clients import CHATS, Body, chat, form, kept_running
from .engines import short_chat
from .scenario import Attack, Family, Place, Scenario

_MIB = 1024 * 1024
# All bodies together, and a single one; uploads of files have limits of the same sizes. The first MiB of each counts
# towards a limit of its own.
_TOGETHER, _SINGLE = 64 * _MIB, 32 * _MIB
_LARGE = _TOGETHER // 3 + _MIB - 1000
_FILES = "/v1/files"
# Seconds between a broken connection and the next one.
_PAUSE = 0.5


async def _large_chat(place: Place) -> float:
    """Seconds to the end of a short answer to a body of 2 MiB, most of which is white space."""
    body = json.dumps(chat(place.victim.words(15), max_tokens=4)).encode()
    return await place.victim.complete(CHATS, Body(body + b" " * 2 * _MIB))


async def _upload(place: Place) -> float:
    """Seconds to the end of an upload of 2 MiB, which is then deleted."""
    line = {"custom_id": "1", "method": "POST", "url": CHATS, "body": chat(place.victim.words(9))}
    file = form(json.dumps(line).encode() + b"\n" * 2 * _MIB, "input.jsonl", purpose="batch")
    began = time.perf_counter()
    response = await place.victim.answer(_FILES, file)
    seconds = time.perf_counter() - began
    await place.victim.ask(f"{_FILES}/{response.json()['id']}", method="DELETE")
    return seconds


def _unfinished(number: int, size: int, path: str, beginning: Body) -> Attack:
    """This many requests of this size whose last byte never comes. Those that are refused begin again."""

    def attack(place: Place) -> AbstractAsyncContextManager[None]:
        client = place.attacker
        named = {**client.headers(beginning.type), "content-length": f"{size + 1}"}
        unfinished = request("POST", path, beginning.data.ljust(size), named)

        async def keep() -> None:
            while True:
                with suppress(BrokenAnswer, OSError):
                    await exchange(client.port, unfinished)
                await asyncio.sleep(_PAUSE)

        return kept_running(keep, number)

    return attack


async def _nothing(place: Place) -> float:
    """No pass and no task is in the way."""
    return 0.0


_CHAT = Body(b'{"messages": [')
_FORM = form(b"", "input.jsonl", purpose="batch")
_FILE = Body(_FORM.data.rpartition(b"\r\n--")[0], _FORM.type)
BODIES = Family(
    "bodies",
    [
        Scenario("3 unfinished bodies", _large_chat, _unfinished(3, _LARGE, CHATS, _CHAT)),
        Scenario("80 unfinished bodies of 1 MiB", short_chat, _unfinished(80, _MIB, CHATS, _CHAT)),
        Scenario("3 unfinished uploads", _upload, _unfinished(3, _LARGE, _FILES, _FILE), _nothing),
    ],
    {
        "GENAI_MAX_BODIES_BYTES": f"{_TOGETHER}",
        "GENAI_MAX_BODY_BYTES": f"{_SINGLE}",
        "GENAI_FILES_DIR": "{folder}/files",
        "GENAI_FILES_BYTES": f"{_TOGETHER}",
        "GENAI_FILES_BYTES_PER_KEY": f"{_TOGETHER}",
        "GENAI_MAX_FILE_BYTES": f"{_SINGLE}",
    },
)
