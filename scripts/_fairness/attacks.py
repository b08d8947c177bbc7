"""Attacks on an engine: places of its batch, the time for prompts, the queue, cached prefixes, and loaded models. And
those on the limits of all bodies together: requests of one key whose bodies never end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import httpx
from _load.http import JSON, BrokenAnswer, exchange, request

from .clients import CHATS, Place, Refused, answer, chat, keep_asking, kept_running, words
from .scenario import Attack, Family, Scenario

# Words of a long prompt, which has 1,800 tokens with the demo model.
_LONG = 900
# The same in all requests of the key that behaves.
_PREFIX = " ".join(f"{number}" for number in range(400))
# Seconds after which a model in use gives way (genai_server.supervisor.model_pool), those that its answers take, and
# twice those of a load.
_MODEL_ALLOWANCE = 15.0 + 10.0 + 20.0
_MIB = 1024 * 1024
# All bodies together, and a single one; uploads of files have limits of the same sizes. The first MiB of each counts
# towards a limit of its own.
_TOGETHER, _SINGLE = 64 * _MIB, 32 * _MIB
_LARGE = _TOGETHER // 3 + _MIB - 1000
_FILES = "/v1/files"
# Seconds between a broken connection and the next one.
_PAUSE = 0.5


async def _short_chat(place: Place) -> httpx.Response:
    """The first token of a chat with a new short prompt."""
    return await answer(place.victim, chat(words(15), max_tokens=1))


def _chats(clients: int, num_words: int = 15, **fields: Any) -> Attack:
    """This many clients of the attacker, with new prompts."""
    return lambda place: keep_asking(place, clients, lambda: chat(words(num_words), **fields))


@asynccontextmanager
async def _full_queue(place: Place) -> AsyncIterator[None]:
    """300 clients, of which most are refused."""
    async with _chats(300)(place):
        while not place.tally.refused:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        yield


async def _continued(place: Place) -> httpx.Response:
    """The first token behind the prefix. Raises Refused if it is not cached any more."""
    response = await answer(place.victim, chat(f"{_PREFIX} {words(5)}", max_tokens=1))
    if not response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]:
        raise Refused("the prefix was evicted")
    return response


@asynccontextmanager
async def _short_prompts(place: Place) -> AsyncIterator[None]:
    """Twenty short prompts, one after another."""
    for number in range(20):
        await place.attacker.post(**chat(f"{number} {words(9)}", max_tokens=2))
    yield


async def _other_model(place: Place) -> httpx.Response:
    """The first token of the model that is not loaded."""
    await answer(place.operator, chat("hello", model="first", max_tokens=1))
    return await answer(place.victim, chat(words(9), model="second", max_tokens=1))


async def _large_chat(place: Place) -> httpx.Response:
    """The first token of the answer to a body of 2 MiB, most of which is white space."""
    body = json.dumps(chat(words(15), max_tokens=1)["json"]).encode() + b" " * 2 * _MIB
    return await answer(place.victim, {"url": CHATS, "content": body, "headers": JSON})


async def _upload(place: Place) -> httpx.Response:
    """An upload of 2 MiB, which is then deleted."""
    line = {"custom_id": "1", "method": "POST", "url": CHATS, "body": chat(words(9))["json"]}
    file = ("input.jsonl", json.dumps(line).encode() + b"\n" * 2 * _MIB)
    response = await answer(place.victim, {"url": _FILES, "files": {"file": file}, "data": {"purpose": "batch"}})
    await place.victim.delete(f"{_FILES}/{response.json()['id']}")
    return response


def _unfinished(number: int, size: int, path: str, kind: str, beginning: bytes) -> Attack:
    """This many requests of this size whose last byte never comes. Those that are refused begin again."""

    def attack(place: Place) -> AbstractAsyncContextManager[None]:
        headers = {"authorization": place.attacker.headers["authorization"], "content-type": kind}
        unfinished = request("POST", path, beginning.ljust(size), {**headers, "content-length": f"{size + 1}"})

        async def keep() -> None:
            while True:
                with suppress(BrokenAnswer, OSError):
                    await exchange(place.attacker.base_url.port or 0, unfinished)
                await asyncio.sleep(_PAUSE)

        return kept_running(keep, number)

    return attack


SCHEDULING = Family(
    "scheduling",
    [
        Scenario("24 clients", _short_chat, _chats(24)),
        Scenario("priority -1000", _short_chat, _chats(24, priority=-1000)),
        Scenario("4 requests of n=16", _short_chat, _chats(4, n=16, temperature=1)),
        Scenario("12 long prompts", _short_chat, _chats(12, _LONG, max_tokens=16)),
        Scenario("16 long prompts", _short_chat, _chats(16, _LONG, max_tokens=16)),
        Scenario("queue of 300", _short_chat, _full_queue),
    ],
    {"GENAI_MAX_LENGTH": "2048"},
)
CACHE = Family(
    "cache", [Scenario("20 short prompts (prefix cache)", _continued, _short_prompts)], {"GENAI_MAX_LENGTH": "2048"}
)
_IN_USE = _chats(4, 9, model="first", max_tokens=16)
MODELS = Family(
    "models",
    [Scenario("a model in constant use", _other_model, _IN_USE, _MODEL_ALLOWANCE)],
    {"GENAI_MODELS": "first={model},second={model}", "GENAI_MAX_MODELS": "1", "GENAI_MODEL_DIR": ""},
)
_CHAT = (CHATS, JSON["content-type"], b'{"messages": [')
_FORM = b'--x\r\ncontent-disposition: form-data; name="file"; filename="input.jsonl"\r\n\r\n'
_FILE = (_FILES, "multipart/form-data; boundary=x", _FORM)
BODIES = Family(
    "bodies",
    [
        Scenario("3 unfinished bodies", _large_chat, _unfinished(3, _LARGE, *_CHAT)),
        Scenario("80 unfinished bodies of 1 MiB", _short_chat, _unfinished(80, _MIB, *_CHAT)),
        Scenario("3 unfinished uploads", _upload, _unfinished(3, _LARGE, *_FILE), 0.0),  # no pass is in the way
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
