"""Sends requests to one OpenAI-style server, also as a load of concurrent streams, and records when each piece of a
response arrives.

Client and server often share their cores. While a response arrives, only times and bytes are recorded; they are parsed
after the load. aiohttp is used because it takes a third of httpx's time for each chunk.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

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

# Seconds to connect, and to wait for the next byte, before a request counts as failed.
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=600.0)
FAILURES = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass
class Recording:
    """The pieces of the response to one request, with their arrival times."""

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
        """Add a piece of the response, with the time of its arrival in seconds."""
        self.pieces.append((arrived, piece))
        if self.awaited_events > 0:
            self.awaited_events -= piece.count(b"data:")
            if self.awaited_events <= 0:
                self.is_under_way.set()

    def answer(self) -> Answer:
        """Parse the recorded answer and return it. Raises AnswerError if it is not complete."""
        if self.error is not None:
            raise AnswerError(self.error)
        return read_answer(self.sent, self.pieces, prompt_tokens=self.prompt_tokens, max_tokens=self.max_tokens)


class Server:
    """An HTTP client for one server to be measured: sends requests and records the responses.

    `label` names the server in reports, `url` is the server's address without a path, and `body` has fields of each
    request. `clock` returns the current time in seconds; each event of a stream is recorded with the time at which it
    arrived.
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
        """If no model was named, use the first model of /v1/models. Without such a list, requests name no model."""
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
        """Request a streamed answer of at most `max_tokens` tokens and record it. Failures are recorded, too.

        `recording` lets the caller watch the progress; `more` are fields of this request only.
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
        """Return the number of tokens of a prompt, as the server reports it with a complete answer of at most
        `max_tokens` tokens; 0 if the server reports none.

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
        """Return the body of a request for an answer of at most `max_tokens` tokens, as JSON. `streamed` are fields
        about streaming, `more` are further fields.
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
        """Send a body and return the response's status, reason phrase and content.

        Raises one of FAILURES: aiohttp's errors, OSError or TimeoutError.
        """
        headers = {"content-type": "application/json"}
        async with self._http.post(self.url + path, data=data, headers=headers) as response:
            return response.status, response.reason or "", await response.read()

    async def record(self, data: bytes, recording: Recording) -> None:
        """Send a body and record the streamed response. Raises one of FAILURES: aiohttp's errors, OSError or
        TimeoutError.
        """
        headers = {"content-type": "application/json"}
        async with self._http.post(f"{self.url}/v1/chat/completions", data=data, headers=headers) as response:
            if response.status != 200:
                recording.error = error_message(response.status, response.reason or "", await response.read())
                return
            async for piece in response.content.iter_any():
                recording.add(self.clock(), piece)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


def open_http(headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """Return an HTTP client with unlimited connections.

    It ignores proxies in the environment, which would affect the measurement.
    """
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, headers=headers, timeout=_TIMEOUT, trust_env=False)


@dataclass(frozen=True)
class Outcome:
    """The answers and errors of a number of requests."""

    answers: list[Answer]
    errors: list[str]

    def measurement(self, target: str, case: Case, number: int, more: Figures | None = None) -> Measurement:
        """Return the measurement of a case in round `number`, from the statistics of the answers and `more`
        figures.
        """
        figures = answer_figures(self.answers, case.streams) | (more or {})
        return Measurement(target, case, number, figures, len(self.answers), tuple(self.errors))


async def run_load(
    server: Server, prompts: Sequence[str], max_tokens: int, streams: int, more: Mapping[str, Any] = {}
) -> Outcome:
    """Send all prompts, `streams` of them at a time, and parse the answers, of at most `max_tokens` tokens each, when
    all have ended.

    `more` are fields of these requests only.
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
    """Parse recordings. Returns complete answers, and the errors of the others."""
    outcome = Outcome([], [])
    for recording in recordings:
        try:
            outcome.answers.append(recording.answer())
        except AnswerError as error:
            outcome.errors.append(str(error))
    return outcome
