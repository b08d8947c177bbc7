"""The HTTP client of the benchmark: sends requests to the measured servers and records the responses.

`Server` sends requests, `Recording` keeps when each piece of a streamed answer arrived, `run_load` sends many requests
at once, `calibrate` finds out how a server counts tokens, `HealthProbe` measures the health endpoint during a load, and
`Target` holds all this for one server. Prompts consist of random words, so that no server has them in its cache.

Client and server often share their cores. While a response arrives, only times and bytes are recorded; they are parsed
after the load. aiohttp is used because it takes a third of httpx's time for each chunk.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import psutil

from genai_server.system.addresses import is_loopback
from genai_server.tools.bench.measurement import (
    Answer,
    AnswerError,
    Case,
    Figures,
    Measurement,
    answer_figures,
    read_answer,
)
from genai_server.tools.server_answers import authorization, checked_url, error_message, unanswered

_TEXT = (
    "river stone window paper garden music winter light bridge market engine silver copper forest island harbor letter "
    "number table chair mirror candle basket ladder pocket button ribbon marble"
)
_WORDS = _TEXT.split()
# Multiples of the whole word list, which has the same number of tokens in any order.
_PROBES = (len(_WORDS), 4 * len(_WORDS))
# Tokens of the answers to these.
_PROBE_ANSWER = 4


def words(count: int, *key: object) -> str:
    """Return a text of `count` random words, for a prompt. Equal keys (`key`, any values) give equal words; different
    keys give texts that differ from the first word on, so that no server has a prefix of them in its cache.

    All words are equally frequent, so that texts with equally many words have about equally many tokens.
    """
    order = random.Random("/".join(map(str, key)))
    sets = (order.sample(_WORDS, len(_WORDS)) for _ in range(-(-count // len(_WORDS))))
    return " ".join(list(itertools.chain.from_iterable(sets))[:count])


@dataclass(frozen=True)
class Calibration:
    """How one server counts the tokens of a prompt of random words, as `calibrate` has determined it.

    A prompt of n words has `overhead` + `tokens_per_word` x n tokens; `overhead` are the tokens of the chat template.
    """

    # Tokens of the chat template.
    overhead: float
    tokens_per_word: float

    def words_for(self, prompt_tokens: int) -> int:
        """Return how many random words a prompt needs so that it has about `prompt_tokens` tokens, including those of
        the chat template; at least one.
        """
        return max(1, round((prompt_tokens - self.overhead) / self.tokens_per_word))

    def tokens_of(self, prompt: str) -> int:
        """Return how many tokens `prompt`, a text of random words, has by this calibration, including those of the chat
        template.
        """
        return round(self.overhead + self.tokens_per_word * len(prompt.split()))

    def words_in(self, tokens: int) -> int:
        """Return how many random words have about `tokens` tokens, without those of the chat template; at least one."""
        return max(1, round(tokens / self.tokens_per_word))


async def calibrate(server: Server, *key: object) -> Calibration:
    """Determine how a server counts tokens, by sending it two prompts of different lengths, which also warm it up.
    Returns the result, with which prompts of a wanted number of tokens can be made.

    `key` are values from which the words of the prompts are generated. If the server's streams do not report the number
    of prompt tokens, complete answers are requested, too, and `server` is changed so that it estimates the tokens of
    later prompts by this calibration. Raises AnswerError if the server does not answer, or never reports
    `usage.prompt_tokens`.
    """
    counted = []
    is_streamed = True
    for count in _PROBES:
        prompt = words(count, *key, "calibrate", count)
        tokens = (await server.ask(prompt, _PROBE_ANSWER)).answer().prompt_tokens
        if not tokens:
            is_streamed, tokens = False, await server.prompt_tokens(prompt, _PROBE_ANSWER)
        counted.append(tokens)
    per_word = (counted[1] - counted[0]) / (_PROBES[1] - _PROBES[0])
    if per_word <= 0:
        raise AnswerError(f"usage.prompt_tokens is {counted} for {list(_PROBES)} words, which cannot be right")
    calibration = Calibration(counted[0] - per_word * _PROBES[0], per_word)
    if not is_streamed:
        server.count_prompt = calibration.tokens_of
    return calibration


# Seconds to connect, and to wait for the next byte, before a request counts as failed.
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=600.0)
FAILURES = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass
class Recording:
    """What has arrived of the response to one request: its pieces as bytes, each with its arrival time, or an error.

    `Server.ask` fills it while the response arrives; `answer` parses it afterwards. The event `is_under_way` is set
    when `awaited_events` events have arrived or the response has ended, so that a benchmark can wait until a stream
    runs.
    """

    # Number of events after which `is_under_way` is set.
    awaited_events: int = 1
    sent: float = 0.0
    # What was asked for: the answer's limit, and the prompt's tokens as far as they are known.
    max_tokens: int | None = None
    prompt_tokens: int = 0
    # Times in seconds of the server's clock, and bytes.
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    # Also set at the end, after fewer events.
    is_under_way: asyncio.Event = field(default_factory=asyncio.Event)
    error: str | None = None

    def add(self, arrived: float, piece: bytes) -> None:
        """Append a piece of the response. `arrived` is the time of its arrival, in seconds of the server object's
        clock.
        """
        self.pieces.append((arrived, piece))
        if self.awaited_events > 0:
            self.awaited_events -= piece.count(b"data:")
            if self.awaited_events <= 0:
                self.is_under_way.set()

    def answer(self) -> Answer:
        """Parse the recorded response and return the answer with its times and numbers of tokens.

        Raises AnswerError if the request failed or the answer is not complete.
        """
        if self.error is not None:
            raise AnswerError(self.error)
        return read_answer(self.sent, self.pieces, prompt_tokens=self.prompt_tokens, max_tokens=self.max_tokens)


class Server:
    """An HTTP client for one server to be measured: sends requests and records the responses.

    `label` names the server in reports, `url` is its address, `api_key` its API key or None, and `model` the model that
    requests name, or None for the server's first model (see `find_model`). `body` has further fields of the JSON body
    of each request. `clock` returns the current time in seconds, by which arrivals are recorded.
    """

    def __init__(
        self,
        label: str,
        url: str,
        *,
        api_key: str | None,
        model: str | None,
        body: Mapping[str, Any],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.label = label
        self.url = checked_url(url).removesuffix("/v1")
        self.model = model
        # Counts the tokens of a prompt for a server whose streams do not.
        self.count_prompt: Callable[[str], int] | None = None
        self._body = body
        self.clock = clock
        # No compression: a compressed stream would arrive in other pieces. A connection for each request: llama.cpp's
        # server ends one after a streamed answer without saying so, and the next request on it would fail.
        headers = {"accept-encoding": "identity", "connection": "close"} | authorization(api_key)
        self._http = open_http(headers)

    async def find_model(self) -> None:
        """If no model was given, set `model` to the first model that the server lists at /v1/models. If the server has
        no such list, `model` stays None, and requests name no model.
        """
        if self.model is not None:
            return
        try:
            async with self._http.get(f"{self.url}/v1/models") as response:
                self.model = str(json.loads(await response.read())["data"][0]["id"])
        except (*FAILURES, ValueError, LookupError, TypeError):
            self.model = None

    async def ask(
        self, prompt: str, max_tokens: int, recording: Recording | None = None, more: Mapping[str, Any] = {}
    ) -> Recording:
        """Send the chat request `prompt`, for a streamed answer of at most `max_tokens` tokens, and return the recorded
        response when it has ended.

        The response is recorded in `recording`, by default a new one; with one of its own, the caller can watch the
        progress. `more` are further fields of this request only. A failed request raises nothing: its error is in the
        recording.
        """
        recording = recording or Recording()
        recording.max_tokens = max_tokens
        recording.prompt_tokens = 0 if self.count_prompt is None else self.count_prompt(prompt)
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        data = self._data(prompt, max_tokens, streamed, more)
        recording.sent = self.clock()
        try:
            await self.record(data, recording)
        except FAILURES as error:
            recording.error = unanswered(self.url, error)
        finally:
            recording.is_under_way.set()
        return recording

    async def prompt_tokens(self, prompt: str, max_tokens: int) -> int:
        """Return the number of tokens that the server counts for a prompt. For this, a complete (not streamed) answer
        of at most `max_tokens` tokens is requested. Returns 0 if the response does not contain the number.

        Raises AnswerError if the request fails.
        """
        data = self._data(prompt, max_tokens, {"stream": False}, {})
        try:
            status, reason, content = await self.complete(data)
        except FAILURES as error:
            raise AnswerError(unanswered(self.url, error)) from None
        if status != 200:
            raise AnswerError(error_message(status, reason, content))
        try:
            return int(json.loads(content)["usage"]["prompt_tokens"])
        except (ValueError, LookupError, TypeError):
            return 0

    def _data(self, prompt: str, max_tokens: int, streamed: Mapping[str, Any], more: Mapping[str, Any]) -> bytes:
        """Return the JSON body of a chat request with the message `prompt` for an answer of at most `max_tokens`
        tokens.

        `streamed` are the fields that say whether the answer is streamed, and `more` are further fields of this
        request.
        """
        body = {
            **({"model": self.model} if self.model is not None else {}),
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            **streamed,
            **self._body,
            **more,
        }
        return json.dumps(body).encode()

    async def complete(self, data: bytes, path: str = "/v1/chat/completions") -> tuple[int, str, bytes]:
        """POST the JSON body `data` to a path of the server, and return the response's status, reason phrase and
        content when it is complete.

        Raises one of FAILURES: aiohttp's errors, OSError or TimeoutError.
        """
        headers = {"content-type": "application/json"}
        async with self._http.post(self.url + path, data=data, headers=headers) as response:
            return response.status, response.reason or "", await response.read()

    async def record(self, data: bytes, recording: Recording) -> None:
        """POST the JSON body `data` of a chat request, and add each piece of the streamed response to `recording` as it
        arrives. For an error response, the recording gets the error message instead.

        Raises one of FAILURES: aiohttp's errors, OSError or TimeoutError.
        """
        headers = {"content-type": "application/json"}
        async with self._http.post(f"{self.url}/v1/chat/completions", data=data, headers=headers) as response:
            if response.status != 200:
                recording.error = error_message(response.status, response.reason or "", await response.read())
                return
            async for piece in response.content.iter_any():
                recording.add(self.clock(), piece)

    async def close(self) -> None:
        """Close the connections to the server. No request can be sent afterwards."""
        await self._http.close()


def open_http(headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """Return a new HTTP client for a benchmark, with any number of connections; the caller has to close it. `headers`
    are sent with each request.

    It ignores proxies in the environment, which would affect the measurement.
    """
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, headers=headers, timeout=_TIMEOUT, trust_env=False)


@dataclass(frozen=True)
class Outcome:
    """The result of a number of benchmark requests: an answer for each request that was answered completely, and an
    error message for each other one.
    """

    answers: list[Answer]
    errors: list[str]

    def measurement(self, target: str, case: Case, number: int, more: Figures | None = None) -> Measurement:
        """Return these requests as the measurement of a case (kind of request) on the server or library named `target`.

        `number` is the round, from 0. The measurement's figures are the statistics of the answers, and `more`.
        """
        figures = answer_figures(self.answers, case.streams) | (more or {})
        return Measurement(target, case, number, figures, len(self.answers), tuple(self.errors))


async def run_load(
    server: Server, prompts: Sequence[str], max_tokens: int, streams: int, more: Mapping[str, Any] = {}
) -> Outcome:
    """Send all `prompts` to a server, `streams` of them at a time, each for an answer of at most `max_tokens` tokens.
    Returns the answers and errors when all requests have ended.

    `more` are further fields of these requests. Answers are parsed only at the end, so that this does not slow the
    load.
    """
    recordings: list[Recording] = []
    waiting = iter(prompts)

    async def stream() -> None:
        for prompt in waiting:
            recordings.append(await server.ask(prompt, max_tokens, more=more))

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return read_all(recordings)


def read_all(recordings: Sequence[Recording]) -> Outcome:
    """Parse the recorded responses. Returns the complete answers, and an error message for each response that is not a
    complete answer.
    """
    outcome = Outcome([], [])
    for recording in recordings:
        try:
            outcome.answers.append(recording.answer())
        except AnswerError as error:
            outcome.errors.append(str(error))
    return outcome


# More unanswered probes would themselves be a load.
_MAX_UNANSWERED = 100


class HealthProbe:
    """Measures how fast a server's health endpoint answers while the server is under load.

    Used as an asynchronous context manager around a load, it sends a GET request to `url` + `path` every `interval`
    seconds, even if earlier ones are still unanswered. `samples` holds the response times in seconds; `failed` counts
    failed requests. Both grow with each use.
    """

    def __init__(self, url: str, path: str, interval: float) -> None:
        self.samples: list[float] = []
        self.failed = 0
        self._url = url + path
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._unanswered: set[asyncio.Task[None]] = set()
        # Separate connections, so that measured requests never wait for one.
        self._http = open_http()

    async def answers(self) -> bool:
        """Whether the server answers requests to its health endpoint with status 200."""
        try:
            async with self._http.get(self._url) as response:
                return response.status == 200
        except FAILURES:
            return False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._probe_on_time())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        if kind is not None:
            for probe in self._unanswered:
                probe.cancel()
        # Otherwise wait for the open probes: a probe that is unanswered at the end is a slow one.
        await asyncio.gather(self._task, *self._unanswered, return_exceptions=True)

    async def _probe_on_time(self) -> None:
        while True:
            if len(self._unanswered) < _MAX_UNANSWERED:
                probe = asyncio.create_task(self._probe())
                self._unanswered.add(probe)
                probe.add_done_callback(self._unanswered.discard)
            await asyncio.sleep(self._interval)

    async def _probe(self) -> None:
        start = time.perf_counter()
        try:
            async with self._http.get(self._url, raise_for_status=True) as response:
                await response.read()
        except FAILURES:
            self.failed += 1
        else:
            self.samples.append(time.perf_counter() - start)

    async def close(self) -> None:
        """Close the connections of the probe. It cannot be used afterwards."""
        await self._http.close()


@dataclass(frozen=True)
class Target:
    """One server that a benchmark measures: the client that sends the requests, how the server counts tokens, the probe
    of its health endpoint, and its processes if they run on this machine. The benchmark's `Session` creates it.

    All servers get the same prompts. If a URL is given twice, its second target has another `copy` number and other
    prompts, because the server has the first ones in its cache.
    """

    server: Server
    calibration: Calibration
    # None if the server has no health endpoint.
    health: HealthProbe | None
    copy: int = 0
    # Those that listen; engine processes are not among these. Empty if the server runs on another machine.
    processes: Sequence[psutil.Process] = ()

    def cpu_seconds(self) -> float | None:
        """Return the total CPU time, in seconds, that the server's processes have used so far; None if it is unknown or
        one of them has ended.
        """
        try:
            times = [process.cpu_times() for process in self.processes]
        except psutil.Error:
            return None
        return sum(cpu_time.user + cpu_time.system for cpu_time in times) if times else None


def server_processes(url: str) -> list[psutil.Process]:
    """Return the processes that listen at a server's URL, so that their CPU time can be measured. Returns an empty list
    if they run on another machine or belong to another user.
    """
    parts = urlsplit(url)
    if not is_loopback(parts.hostname or ""):
        return []
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        sockets = psutil.net_connections(kind="tcp")  # macOS allows this only for root
        listening = [connection for connection in sockets if connection.status == psutil.CONN_LISTEN]
        pids = {
            connection.pid
            for connection in listening
            if connection.pid is not None and connection.laddr and connection.laddr.port == port
        }
        return [psutil.Process(pid) for pid in pids]
    except psutil.Error:
        return []
