"""How soon a prompt of 1,500 tokens ends that is cancelled, terminated, left or past its deadline, each several times.

No attack: the figures of "alone" are those of a list of requests, which the engine answers between two passes of a
short answer. Each end may take the longest interrupt on two quiet cores more.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from _load.http import Exchange

from .clients import chat
from .scenario import Effort, Family, Place, Row

_WORDS = 750
# Seconds of the longest interrupt on two quiet cores.
_INTERRUPT = 0.2
_OPTIONS = "/v1/admin/runtime_options"
_numbers = itertools.count()
# Ends the request of this name; returns when the engine has carried it out, or None if the request's end shows it.
End = Callable[[Place, str], Awaitable[None]]


async def _terminate_device(place: Place, name: str) -> None:
    await place.operator.post(_OPTIONS, {"terminate_session": "1"})


async def _terminate(place: Place, name: str) -> None:
    await place.operator.post(_OPTIONS, {"terminate_session": "1", "request_id": name})


async def _cancel(place: Place, name: str) -> None:
    await place.operator.post(f"/v1/requests/{name}/cancel", {})


async def _nothing(place: Place, name: str) -> None:
    """The client leaves, or the deadline passes."""


ENDS: Mapping[str, End] = {
    "terminate the device": _terminate_device,
    "terminate by id": _terminate,
    "cancel by id": _cancel,
    "disconnect": _nothing,
    "deadline": _nothing,
}


async def measure(place: Place, effort: Effort) -> list[Row]:
    """The row of each end, in turns."""
    rows = {name: Row(name, ratio=1.0, allowance=_INTERRUPT, is_timed=effort.is_timed) for name in ENDS}
    for _ in range(effort.rounds * effort.requests):
        for name, end in ENDS.items():
            began = time.perf_counter()
            await place.operator.get("/v1/requests")
            rows[name].alone.append(time.perf_counter() - began)
            rows[name].attacked.append(await _seconds(place, name, end))
    return list(rows.values())


async def _seconds(place: Place, how: str, end: End) -> float:
    """Seconds from an end to the moment at which the engine has no request any more."""
    name = f"ending-{next(_numbers)}"
    fields = {"timeout": 0.5} if how == "deadline" else {}
    # So many tokens that it does not end by itself.
    body = json.dumps(chat(place.victim.words(_WORDS), cache_prompt=False, max_tokens=300, **fields)).encode()
    async with Exchange(place.port) as exchange:
        sent = time.perf_counter()
        headers = place.victim.headers() | {"x-request-id": name}
        await exchange.send("POST", "/v1/chat/completions", body, headers)
        if how == "deadline":
            await asyncio.sleep(max(0.0, sent + 0.5 - time.perf_counter()))
        else:
            await place.until(lambda requests: requests.get(name, "queued") != "queued", every=0.01)
            await asyncio.sleep(0.1)  # somewhere in a chunk
        began = time.perf_counter()
        await end(place, name)
        if how != "disconnect":
            await place.until(lambda requests: not requests, every=0.005)
    if how == "disconnect":
        began = time.perf_counter()
        await place.until(lambda requests: not requests, every=0.005)
    seconds = time.perf_counter() - began
    if how == "terminate the device":
        await place.operator.post(_OPTIONS, {"terminate_session": "0"})
        await place.ready()
    return seconds


def _settings(folder: Path, model: Path) -> Mapping[str, str]:
    return {"GENAI_MAX_LENGTH": "2048"}


FAMILY = Family("interrupts", (), _settings, measure)
