"""An engine's decode steps, taken apart: what ONNX Runtime takes, by operator, and what the engine itself does."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genai_server.engine.decoder_graph import DecoderGraph
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.kv_cache_limits import BatchLimits
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.messages.protocol import Submit, ToApi, encode_frame

from .engine_loop import API, open_loop
from .equality import prompt

MAX_LENGTH, PROMPT_TOKENS = 512, 24
WARM_UP = 4


@dataclass(frozen=True)
class Step:
    """One decode step of an engine; times in seconds. `number` counts the session's passes before it."""

    whole: float
    in_session: float
    # The main thread's processor time outside the session: what other programs do in the machine adds little to it.
    cpu_around: float
    number: int


class TimedSession:
    """Wraps a session of ONNX Runtime and records how long its passes take."""

    def __init__(self, session: Any) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []  # of the calling thread
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        """Run a pass."""
        started, cpu_started = time.perf_counter(), time.thread_time()
        self._session.run_with_iobinding(binding, options)
        self.cpu_seconds.append(time.thread_time() - cpu_started)
        self.seconds.append(time.perf_counter() - started)


class ProfiledSession:
    """A session that ONNX Runtime profiles, into a folder."""

    def __init__(self, graph: DecoderGraph, folder: Path) -> None:
        self._session = open_session(graph, 0, profile_prefix=str(folder / "step"))
        self.timed = TimedSession(self._session)

    def operators(self, found: dict[int, list[Step]]) -> dict[int, Counter[str]]:
        """The seconds of each operator in all steps of a number of rows; ends the profiling."""
        events = json.loads(Path(self._session.end_profiling()).read_text())
        passes = [event for event in events if event["cat"] == "Session" and event["name"] == "model_run"]
        passes.sort(key=lambda event: event["ts"])
        nodes = [event for event in events if event["cat"] == "Node" and event["name"].endswith("_kernel_time")]
        times = {}
        for rows, steps in found.items():
            begin, last = passes[steps[0].number]["ts"], passes[steps[-1].number]
            end = last["ts"] + last["dur"]
            times[rows] = Counter[str]()
            for event in nodes:
                if begin <= event["ts"] <= end:
                    times[rows][event["args"]["op_name"]] += event["dur"] / 1e6
        return times


class Line:
    """A socket that the messages of a step are written to, as in an engine, and read from between the steps."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._far.setblocking(False)

    def send(self, connection: int, messages: list[ToApi]) -> None:
        """Write them."""
        self._near.send(encode_frame(messages))

    def drain(self) -> None:
        """Discard what the engine has sent."""
        with contextlib.suppress(BlockingIOError):
            self._far.recv(1 << 20)


def decode_steps(
    model_dir: Path,
    graph: DecoderGraph,
    session: TimedSession,
    rows: Sequence[int],
    number: int,
    sampling: Sampling | None = None,
) -> dict[int, list[Step]]:
    """A number of steps with each number of rows, as in the engine's main thread. Greedy without a `sampling`."""
    model = check_model_directory(model_dir)
    runner = BatchedRunner(graph, session, model, BatchLimits(max(rows), MAX_LENGTH))
    line = Line()
    loop, scheduler = open_loop(LoadedModel(runner, runner), model_guidance(model_dir, model), Path(), line.send)
    found = {}
    for count in rows:
        for key in range(count):
            # Each is decoded while the prompts after it are read, too.
            length = WARM_UP + number + 2 * count
            request = GenerationRequest(
                f"r{key}",
                prompt(PROMPT_TOKENS, key),
                length,
                MAX_LENGTH,
                sampling=sampling or Sampling(),
                ignore_eos=True,
            )
            loop.inbox.put((API, Submit(key, request)))
        loop.run_one_step()
        while any(not sequence.is_decoding for sequence in scheduler.running):
            loop.run_one_step()
        found[count] = [timed(loop.run_one_step, session, line) for _ in range(WARM_UP + number)][WARM_UP:]
        while not scheduler.is_idle:
            loop.run_one_step()
            line.drain()
    return found


def timed(run_one_step: Callable[[], None], session: TimedSession, line: Line) -> Step:
    """One step, which has one pass."""
    before = len(session.seconds)
    started, cpu_started = time.perf_counter(), time.thread_time()
    run_one_step()
    cpu, whole = time.thread_time() - cpu_started, time.perf_counter() - started
    line.drain()
    (in_session,), (cpu_in_session,) = session.seconds[before:], session.cpu_seconds[before:]
    return Step(whole, in_session, cpu - cpu_in_session, before)
