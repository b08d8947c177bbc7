"""Sends wrong requests to all POST endpoints of a server of scripted engines.

No answer may be a 500, take more than a second, or make the server hold more memory or files, and /healthz must answer
all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from _load.clients import ADMIN
from _load.footprint import Footprint, footprint, grown, growth, together, usual
from _load.http import BrokenAnswer, Response, ask, ask_json, exchange
from _load.pulse import LONGEST_PULSE, Pulse, pulse
from _load.server import HOST, Server, run_server

from .attempts import Attempt, attempt, complaint_about
from .campaign import Campaign, Outcome
from .corpus import CONVERSATION, ITEM, RESPONSE
from .floods import Place, places

SETTINGS = {
    "GENAI_DEVICE": "scripted",
    # By the files of the two last ones, their engines give vectors and scores.
    "GENAI_MODELS": "onnx-genai=models/demo,vectors=models/demo-embeddings,scores=models/demo-reranker",
    "GENAI_MAX_LENGTH": "1000",  # an answer of 2,000 tokens along a grammar takes 0.8 s alone
    "GENAI_RESPONSE_STORE_BYTES": "1000000",  # soon full, so that its contents do not count as growth
    "HF_HUB_OFFLINE": "1",  # a pull is refused before any request to a hub
}
LONGEST_SECONDS = 1.0
_GIVEN_UP_SECONDS = 20.0
# An attempt that was slow only because the machine was busy is not slow each time.
_TRIES = 3
_MAX_SUSPECTS = 200
_SAMPLES = 100
# Of memory. The caches and the heap of the API process are full after a thousand attempts, and it is level from there
# on; a shorter run compares what is still filling.
_MAX_GROWTH, _MAX_GROWTH_WHILE_FILLING, _LONG = 0.10, 0.25, 2_500
_MAX_PRINTED = 100_000
_TURNS = [{"role": "user", "content": f"say {number}"} for number in range(20)]
# Attempts replace what is stored, or delete it.
_REQUESTS_BEFORE_RENEWAL = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this target."""
    parser.add_argument("--workers", type=int, default=2, help="API processes (2)")
    help = f"of memory that is allowed ({_MAX_GROWTH}, below {_LONG} attempts {_MAX_GROWTH_WHILE_FILLING})"
    parser.add_argument("--growth", type=float, help=help)
    help = "how many times as long as on a quiet machine answers may take (1)"
    parser.add_argument("--slack", type=float, default=1.0, help=help)


def run(arguments: argparse.Namespace, numbers: range) -> Campaign:
    """Send the requests with these numbers."""
    found = Campaign(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        # Files are stored where all API processes find them.
        settings = SETTINGS | {"WORKERS": str(arguments.workers), "GENAI_FILES_DIR": f"{folder}/files"}
        with run_server(Path(folder), settings) as server:
            asked = endpoints(server)
            if arguments.only is not None:
                shown = attempt(arguments.seed, arguments.only, asked)
                print(f"{shown}"[:_MAX_PRINTED])
            with pulse(server.port) as beats:
                fuzzer = Fuzzer(server, found, asked, beats, arguments.slack)
                asyncio.run(fuzzer.run(numbers))
        tracebacks = (Path(folder) / "server.log").read_text(errors="replace").count("Traceback")
    found.figures += [["endpoints", f"{len(asked)}"], ["tracebacks in the log", f"{tracebacks}"]]
    allowed = arguments.growth
    if allowed is None:
        allowed = _MAX_GROWTH if len(numbers) >= _LONG else _MAX_GROWTH_WHILE_FILLING
    for name, course in (("API processes", fuzzer.api), ("engines", fuzzer.engines)):
        before, after = compared(course)
        found.figures += [
            [f"{name}: PSS", f"{before.pss / 1e6:.1f} → {after.pss / 1e6:.1f} MB"],
            [f"{name}: growth", f"{100 * growth(before, after):.1f} %"],
            [f"{name}: handles, threads", f"{before.handles} → {after.handles}, {before.threads} → {after.threads}"],
        ]
        promises = grown(before, after, allowed, arguments.workers)
        found.broken += [f"{promise}: {name}: {before} to {after}" for promise in promises]
    return found


def compared(course: Sequence[Footprint]) -> tuple[Footprint, Footprint]:
    """What was usual in the middle fifth, when caches are full, and in the last: the largest bodies and grammars come
    and go in between.
    """
    fifth = max(1, len(course) // 5)
    return usual(course[2 * fifth : 3 * fifth] or course), usual(course[-fifth:])


def endpoints(server: Server) -> dict[str, list[Place]]:
    """The places that may be flooded in the bodies of all POST endpoints, by path, in the server's description."""
    description: dict[str, Any] = httpx.get(f"http://{HOST}:{server.port}/openapi.json", timeout=60).json()
    found = places(description)
    return {path: found.get(path, []) for path, methods in description["paths"].items() if "post" in methods}


@dataclass
class Stored:
    """What is stored on one server, for requests that name it by placeholders. It is stored again once in a while."""

    port: int
    identifiers: dict[bytes, bytes] = field(default_factory=dict)
    used: int = 0

    async def fill(self, data: bytes) -> bytes:
        """The request with identifiers in place of the placeholders. Raises BrokenAnswer and OSError."""
        if not any(placeholder.encode() in data for placeholder in (CONVERSATION, RESPONSE, ITEM)):
            return data
        if self.used % _REQUESTS_BEFORE_RENEWAL == 0:
            await self._store()
        self.used += 1
        for placeholder, identifier in self.identifiers.items():
            data = data.replace(placeholder, identifier)
        return data

    async def _store(self) -> None:
        conversation = (await ask_json(self.port, "/v1/conversations", {"items": _TURNS})).json()["id"]
        items = (await ask(self.port, "GET", f"/v1/conversations/{conversation}/items")).json()
        response = (await ask_json(self.port, "/v1/responses", {"input": "say hi"})).json()["id"]
        found = {CONVERSATION: conversation, RESPONSE: response, ITEM: items["last_id"]}
        self.identifiers = {name.encode(): identifier.encode() for name, identifier in found.items()}


class Fuzzer:
    """Sends the attempts of one campaign. `api` and `engines` are the footprints of all these processes over time.

    All time limits are multiplied by `slack`.
    """

    def __init__(
        self, server: Server, found: Campaign, asked: Mapping[str, Sequence[Place]], pulse: Pulse, slack: float = 1.0
    ) -> None:
        self.api: list[Footprint] = []
        self.engines: list[Footprint] = []
        self._server = server
        self._found = found
        self._asked = asked
        self._pulse = pulse
        self._longest_seconds, self._longest_pulse = slack * LONGEST_SECONDS, slack * LONGEST_PULSE
        self._given_up_seconds = slack * _GIVEN_UP_SECONDS
        self._stored = Stored(server.port)
        self._sampled = 1
        # When each attempt was under way, by `time.monotonic`.
        self._times: list[tuple[float, float, int]] = []

    async def run(self, numbers: range) -> None:
        """Make the attempts with these numbers; the footprint of the processes is recorded a hundred times."""
        self._sampled = max(1, len(numbers) // _SAMPLES)
        await self._found.run(numbers, self._one)
        await self._find_what_holds_up()
        if restarts := sum(engine["restarts"] for engine in await asyncio.to_thread(self._server.engines)):
            self._found.broken.append(f"engines died {restarts} times")

    async def _one(self, number: int) -> Outcome:
        made = self._attempt(number)
        started = time.monotonic()
        if number % self._sampled == 0:
            await self._measure()
        seconds, result, complaint = await self._try(made)
        tries = 1
        while seconds > self._longest_seconds and complaint is None and tries < _TRIES:
            seconds, result, complaint = await self._try(made)
            tries += 1
        self._times.append((started, time.monotonic(), number))
        if seconds > self._longest_seconds:
            complaint = complaint or f"takes {seconds:.1f} s each time"
        if "admin" in made.path:
            await ask_json(self._server.port, ADMIN, {"terminate_session": "0", "enable_profiling": "0"})
        return Outcome("request", result, complaint, seconds)

    def _attempt(self, number: int) -> Attempt:
        return attempt(self._found.seed, number, self._asked)

    async def _find_what_holds_up(self) -> None:
        """Repeat each attempt that was under way while /healthz did not answer, alone: a culprit always delays it."""
        await asyncio.to_thread(self._pulse.look)
        slow = [beat for beat in self._pulse.beats if beat[1] - beat[0] > self._longest_pulse]
        self._found.figures.append(["slowest /healthz", f"{self._pulse.slowest():.3f} s, {len(slow)} too slow"])
        suspects = [
            number for began, ended, number in self._times if any(start < ended and began < end for start, end in slow)
        ]
        for number in suspects[:_MAX_SUSPECTS]:
            fastest = await self._pulse_during(self._attempt(number))
            if fastest > self._longest_pulse:
                self._found.failures.append((number, f"/healthz takes {fastest:.2f} s during it each time"))
        if len(suspects) > _MAX_SUSPECTS:
            self._found.broken.append(f"{len(suspects)} attempts were under way during slow answers of /healthz")

    async def _pulse_during(self, made: Attempt) -> float:
        """The slowest answer of /healthz during an attempt, in the try in which it was fastest."""
        fastest = float("inf")
        for _ in range(_TRIES):
            started = time.monotonic()
            await self._try(made)
            await asyncio.to_thread(self._pulse.look)
            fastest = min(fastest, self._pulse.slowest(started))
            if fastest <= self._longest_pulse:
                break
        return fastest

    async def _try(self, made: Attempt) -> tuple[float, str, str | None]:
        """Seconds until the end, the status, and what is wrong with the answer."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._given_up_seconds):
                filled = replace(made, data=await self._stored.fill(made.data))
                response = await send(self._server.port, filled)
        except TimeoutError:
            return time.perf_counter() - started, "no answer", f"no answer within {self._given_up_seconds:.0f} s"
        except (BrokenAnswer, OSError) as error:
            complaint = f"no complete answer: {type(error).__name__} {error}" if made.is_whole else None
            return time.perf_counter() - started, "hung up", complaint
        return (
            time.perf_counter() - started,
            str(response.status),
            complaint_about(response.status, bytes(response.body)),
        )

    async def _measure(self) -> None:
        engines = await asyncio.to_thread(self._server.engines)
        # Otherwise one is being restarted, which counts as a failure at the end.
        if all(engine["state"] == "ready" for engine in engines):
            self.engines.append(together([footprint(engine["pid"]) for engine in engines]))
            self.api.append(together([footprint(pid) for pid in self._server.api_pids()]))


async def send(port: int, made: Attempt) -> Response:
    """Send it and read the complete answer; an incomplete request may get none. Raises BrokenAnswer."""
    return await exchange(port, made.data, is_whole=made.is_whole)
