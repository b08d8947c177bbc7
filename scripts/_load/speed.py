"""How fast a server answers a number of streams, from the first byte of each request on.

While answers arrive, only times and bytes are noted; they are read afterwards, so that the load takes little of the
machine. The figures are those of `genai-server bench`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import h11
import psutil

from genai_server.tools.bench.measured_answer import Answer, AnswerError, read_answer
from genai_server.tools.bench.statistics import Figures as RoundFigures
from genai_server.tools.bench.statistics import answer_figures, spread

from .gpu import gpu_use
from .prompts import Prompts, user
from .server import HOST, Server
from .step_results import Broken, Figures, Skipped

GREEDY = {"temperature": 0}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 40}
_PROMPT_TOKENS = 64
_ROUNDS = 3
_PROMPT_ROUNDS = 5
# The first token may be half a character, which has no text.
_TOKENS_AFTER_A_PROMPT = 4
# A prompt may be some tokens longer than asked for.
_SPARE_TOKENS = 32
# For the rounds of one load.
_SECONDS = 15.0
# From a round's begin until its streams decode.
_SECONDS_TO_THE_MIDDLE = 0.6
_CORES = ("engine_cores", "api_cores", "load_cores")
_PATH = "/v1/chat/completions"


@dataclass
class _Recording(asyncio.Protocol):
    """What arrives on one connection, with the times."""

    request: bytes
    ended: asyncio.Future[None]
    sent: float = 0.0
    received: list[tuple[float, bytes]] = field(default_factory=list)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.sent = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.received.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def answer(self) -> Answer:
        """The complete answer. Raises AnswerError."""
        return read_answer(self.sent, self._content())

    def _content(self) -> Iterator[tuple[float, bytes]]:
        """The pieces of the body. Raises AnswerError unless the status is 200."""
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method="POST", target=_PATH, headers=[("host", HOST)]))
        connection.send(h11.EndOfMessage())
        for arrived, data in self.received:
            connection.receive_data(data)
            while (event := connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response) and event.status_code != 200:
                    raise AnswerError(f"status {event.status_code}: {self.received[-1][1][-300:].decode('latin-1')}")
                if isinstance(event, h11.Data):
                    yield arrived, bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return


@dataclass(frozen=True)
class _Load:
    """Requests at once, with the lengths of prompt and answer in tokens."""

    streams: int
    prompt_tokens: int
    output_tokens: int
    sampling: dict[str, Any]

    def requests(self, prompts: Prompts, key: object) -> list[bytes]:
        """One request for each stream; each key has other prompts."""
        fields = {"max_tokens": self.output_tokens, "ignore_eos": True, "stream": True, **self.sampling}
        fields["stream_options"] = {"include_usage": True}
        found = []
        for number in range(self.streams):
            text = prompts.text(self.prompt_tokens, key, self, number)
            data = json.dumps({"messages": user(text), **fields}).encode()
            head = f"POST {_PATH} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\ncontent-type: application/json\r\n"
            found.append(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        return found


class Speed:
    """Measures one server, which runs `num_slots` requests at once, until `end` (of `time.monotonic`)."""

    def __init__(self, server: Server, prompts: Prompts, num_slots: int, end: float) -> None:
        self._server = server
        self._prompts = prompts
        self._num_slots = num_slots
        self._end = end

    async def decode(self, streams: int, num_tokens: int, **sampling: Any) -> Figures:
        """Medians over rounds of that many requests at once, after a round that does not count unless it takes all the
        time. Raises Skipped and Broken.
        """
        if streams > self._num_slots:
            raise Skipped(f"{self._num_slots} requests run at once")
        load = _Load(streams, _PROMPT_TOKENS, num_tokens, sampling)
        began = time.monotonic()
        warm, using = await asyncio.gather(self._round(load, "warm"), _use_in_the_middle())
        names = ("decode_tokens_per_second", "tokens_per_second", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95")
        is_slow = time.monotonic() - began > _SECONDS
        rounds = [warm] if is_slow else await self._rounds(load, _ROUNDS)
        return _medians(rounds, *names) | {"gpu_while_warming": using}

    async def prompt(self, prompt_tokens: int) -> Figures:
        """Medians of the time to the first token of a prompt alone. Raises Skipped and Broken."""
        if prompt_tokens + _SPARE_TOKENS > self._prompts.max_length:
            raise Skipped(f"prompt and answer have at most {self._prompts.max_length} tokens")
        load = _Load(1, prompt_tokens, _TOKENS_AFTER_A_PROMPT, GREEDY)
        await self._round(load, "warm")
        return _medians(await self._rounds(load, _PROMPT_ROUNDS), "ttft_p50", "prefill_tokens_per_second")

    async def _rounds(self, load: _Load, number: int) -> list[RoundFigures]:
        """At least one round, and up to `number` of them while there is time."""
        end = min(time.monotonic() + _SECONDS, self._end)
        found: list[RoundFigures] = []
        longest = 0.0
        while len(found) < number and (not found or time.monotonic() + 1.5 * longest < end):
            began = time.monotonic()
            found.append(await self._round(load, len(found)))
            longest = max(longest, time.monotonic() - began)
        return found

    async def _round(self, load: _Load, key: object) -> RoundFigures:
        """One request on each stream. Raises Broken if one fails."""
        requests = load.requests(self._prompts, key)
        processes = await asyncio.to_thread(self._processes)
        before, own, began = _cpu_seconds(processes), time.process_time(), time.perf_counter()
        recordings = await self._record(requests)
        wall, own = time.perf_counter() - began, time.process_time() - own
        after = _cpu_seconds(processes)
        cores = {f"{name}_cores": (after[name] - spent) / wall for name, spent in before.items() if name in after}
        try:
            answers = [recording.answer() for recording in recordings]
        except AnswerError as error:
            raise Broken(f"an answer of {load.streams} is not complete: {error}") from None
        return answer_figures(answers, load.streams) | {"load_cores": own / wall, **cores}

    async def _record(self, requests: Sequence[bytes]) -> list[_Recording]:
        loop = asyncio.get_running_loop()
        recordings = [_Recording(request, loop.create_future()) for request in requests]
        port = self._server.port
        made = await asyncio.gather(
            *(loop.create_connection(lambda each=each: each, HOST, port) for each in recordings)  # type: ignore[misc]
        )
        try:
            await asyncio.gather(*(recording.ended for recording in recordings))
        finally:
            for transport, _ in made:
                transport.abort()
        return recordings

    def _processes(self) -> dict[str, psutil.Process]:
        pids = {"engine": self._server.engine_pid(), "api": self._server.pid}
        return {name: psutil.Process(pid) for name, pid in pids.items() if pid is not None}


async def _use_in_the_middle() -> list[dict[str, str]]:
    await asyncio.sleep(_SECONDS_TO_THE_MIDDLE)
    return await asyncio.to_thread(gpu_use)


def _cpu_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """Processor time up to now; a process that has ended is left out."""
    found = {}
    for name, process in processes.items():
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[name] = times.user + times.system
    return found


def _medians(rounds: Sequence[RoundFigures], *names: str) -> Figures:
    """The medians of the figures with these names, and of the cores at work; `spreads` has all figures."""
    figures = {name: spread([each.get(name) for each in rounds]) for name in rounds[0]}
    known = {name: one for name, one in figures.items() if one is not None}
    shown = {name: known[name].median for name in (*names, *_CORES) if name in known}
    return {**shown, "rounds": len(rounds), "spreads": {name: asdict(one) for name, one in known.items()}}
