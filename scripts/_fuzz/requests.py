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
from pathlib import Path

import httpx
from _load.clients import ADMIN
from _load.footprint import Footprint, footprint, grown, growth, together, usual
from _load.http import BrokenAnswer, ask, ask_json, exchange
from _load.pulse import LONGEST_PULSE, Pulse, pulse
from _load.server import HOST, Server, run_server

from .attempts import Attempt, attempt, complaint_about
from .campaign import Campaign, Outcome
from .corpus import CONVERSATION, ITEM, RESPONSE
from .floods import Place, places

_NUM_WORKERS = 2
_SETTINGS = {
    "GENAI_DEVICE": "scripted",
    "WORKERS": f"{_NUM_WORKERS}",
    # By the files of the two last ones, their engines give vectors and scores.
    "GENAI_MODELS": "onnx-genai=models/demo,vectors=models/demo-embeddings,scores=models/demo-reranker",
    "GENAI_MAX_LENGTH": "1000",  # an answer of 2,000 tokens along a grammar takes 0.8 s alone
    "GENAI_RESPONSE_STORE_BYTES": "1000000",  # soon full, so that its contents do not count as growth
    "HF_HUB_OFFLINE": "1",  # a pull is refused before any request to a hub
}
_LONGEST_SECONDS = 1.0
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


def run(arguments: argparse.Namespace, numbers: range) -> Campaign:
    """Send the requests with these numbers."""
    found = Campaign(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        # Files are stored where all API processes find them.
        with run_server(Path(folder), _SETTINGS | {"GENAI_FILES_DIR": f"{folder}/files"}) as server:
            endpoints = places(httpx.get(f"http://{HOST}:{server.port}/openapi.json", timeout=60).json())
            if arguments.only is not None:
                print(f"{attempt(arguments.seed, arguments.only, endpoints)}"[:_MAX_PRINTED])
            with pulse(server.port) as beats:
                fuzzer = Fuzzer(server, found, endpoints, beats, arguments.slack)
                asyncio.run(fuzzer.run(numbers))
        tracebacks = (Path(folder) / "server.log").read_text(errors="replace").count("Traceback")
    found.figures += [["endpoints", f"{len(endpoints)}"], ["tracebacks in the log", f"{tracebacks}"]]
    max_growth = _MAX_GROWTH if len(numbers) >= _LONG else _MAX_GROWTH_WHILE_FILLING
    for name, course in (("API processes", fuzzer.api), ("engines", fuzzer.engines)):
        # In the middle fifth, when caches are full, and in the last: the largest bodies and grammars come and go in
        # between.
        fifth = max(1, len(course) // 5)
        before, after = usual(course[2 * fifth : 3 * fifth] or course), usual(course[-fifth:])
        found.figures += [
            [f"{name}: PSS", f"{before.pss / 1e6:.1f} → {after.pss / 1e6:.1f} MB"],
            [f"{name}: growth", f"{100 * growth(before, after):.1f} %"],
            [f"{name}: handles, threads", f"{before.handles} → {after.handles}, {before.threads} → {after.threads}"],
        ]
        promises = grown(before, after, max_growth, _NUM_WORKERS)
        found.broken += [f"{promise}: {name}: {before} to {after}" for promise in promises]
    return found


class Fuzzer:
    """Sends the attempts of one campaign. `api` and `engines` are the footprints of all these processes over time.

    All time limits are multiplied by `slack`.
    """

    def __init__(
        self, server: Server, found: Campaign, endpoints: Mapping[str, Sequence[Place]], pulse: Pulse, slack: float
    ) -> None:
        self.api: list[Footprint] = []
        self.engines: list[Footprint] = []
        self._server = server
        self._found = found
        self._endpoints = endpoints
        self._pulse = pulse
        self._slack = slack
        self._sampled = 1
        # The identifiers of what is stored, by their placeholders, and how many requests have named them.
        self._stored: dict[str, str] = {}
        self._uses = 0
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
        made = attempt(self._found.seed, number, self._endpoints)
        started = time.monotonic()
        if number % self._sampled == 0:
            await self._measure()
        for _ in range(_TRIES):
            seconds, result, complaint = await self._try(made)
            if complaint is not None or seconds <= self._slack * _LONGEST_SECONDS:
                break
        else:
            complaint = f"takes {seconds:.1f} s each time"
        self._times.append((started, time.monotonic(), number))
        if "admin" in made.path:
            await ask_json(self._server.port, ADMIN, {"terminate_session": "0", "enable_profiling": "0"})
        return Outcome("request", result, complaint, seconds)

    async def _try(self, made: Attempt) -> tuple[float, str, str | None]:
        """Seconds until the end, the status, and what is wrong with the answer; an incomplete request may get none."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._slack * _GIVEN_UP_SECONDS):
                data = await self._filled(made.data)
                response = await exchange(self._server.port, data, is_whole=made.is_whole)
            result, complaint = str(response.status), complaint_about(response.status, bytes(response.body))
        except TimeoutError:
            result, complaint = "no answer", "no answer in time"
        except (BrokenAnswer, OSError) as error:
            result, complaint = "hung up", f"no complete answer: {type(error).__name__} {error}"
            if not made.is_whole:
                complaint = None
        return time.perf_counter() - started, result, complaint

    async def _filled(self, data: bytes) -> bytes:
        """The request with identifiers of what is stored in place of the placeholders."""
        if not any(placeholder.encode() in data for placeholder in (CONVERSATION, RESPONSE, ITEM)):
            return data
        if self._uses % _REQUESTS_BEFORE_RENEWAL == 0:
            port = self._server.port
            conversation = (await ask_json(port, "/v1/conversations", {"items": _TURNS})).json()["id"]
            items = (await ask(port, "GET", f"/v1/conversations/{conversation}/items")).json()
            response = (await ask_json(port, "/v1/responses", {"input": "say hi"})).json()["id"]
            self._stored = {CONVERSATION: conversation, RESPONSE: response, ITEM: items["last_id"]}
        self._uses += 1
        for placeholder, identifier in self._stored.items():
            data = data.replace(placeholder.encode(), identifier.encode())
        return data

    async def _find_what_holds_up(self) -> None:
        """Repeat each attempt that was under way while /healthz did not answer, alone: a culprit always delays it."""
        longest = self._slack * LONGEST_PULSE
        await asyncio.to_thread(self._pulse.look)
        slow = [beat for beat in self._pulse.beats if beat[1] - beat[0] > longest]
        self._found.figures.append(["slowest /healthz", f"{self._pulse.slowest():.3f} s, {len(slow)} too slow"])
        suspects = [
            number for began, ended, number in self._times if any(start < ended and began < end for start, end in slow)
        ]
        for number in suspects[:_MAX_SUSPECTS]:
            for _ in range(_TRIES):
                started = time.monotonic()
                await self._try(attempt(self._found.seed, number, self._endpoints))
                await asyncio.to_thread(self._pulse.look)
                if (slowest := self._pulse.slowest(started)) <= longest:
                    break
            else:
                self._found.failures.append((number, f"/healthz takes {slowest:.2f} s during it each time"))
        if len(suspects) > _MAX_SUSPECTS:
            self._found.broken.append(f"{len(suspects)} attempts were under way during slow answers of /healthz")

    async def _measure(self) -> None:
        engines = await asyncio.to_thread(self._server.engines)
        # Otherwise one is being restarted, which counts as a failure at the end.
        if all(engine["state"] == "ready" for engine in engines):
            self.engines.append(together([footprint(engine["pid"]) for engine in engines]))
            self.api.append(together([footprint(pid) for pid in self._server.api_pids()]))
