"""An engine's decode steps, taken apart: what ONNX Runtime takes, by operator, and what the engine itself does."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.sequence_limits import BatchLimits
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.messages.engine_protocol import Submit, ToApi
from genai_server.messages.frames import encode_frame
from genai_server.messages.generation_request import GenerationRequest, Sampling

from .engine_loop import API, open_loop
from .equality import prompt

MAX_LENGTH, PROMPT_TOKENS = 512, 24
WARM_UP = 4


@dataclass(frozen=True)
class Instant:
    """A moment in seconds, by the clock and by the processor time of the calling thread."""

    clock: float
    cpu: float


@dataclass(frozen=True)
class Step:
    """One decode step of an engine: a pass of the session, and the gap until the session's next pass begins.

    Times are in seconds. `number` counts the session's passes before it.
    """

    in_session: float
    gap: float
    # The main thread's processor time in the gap: what other programs do in the machine adds little to it.
    cpu_gap: float
    number: int

    @property
    def whole(self) -> float:
        """Seconds from the beginning of the pass to the beginning of the next one."""
        return self.in_session + self.gap


class TimedSession:
    """Wraps a session of ONNX Runtime and records when its passes begin and end."""

    def __init__(self, session: Any) -> None:
        self.passes: list[tuple[Instant, Instant]] = []
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        """Run a pass."""
        # The processor time takes longer to read than the clock, and belongs to no gap.
        begun = Instant(clock=time.perf_counter(), cpu=time.thread_time())
        self._session.run_with_iobinding(binding, options)
        ended = Instant(cpu=time.thread_time(), clock=time.perf_counter())
        self.passes.append((begun, ended))

    def steps(self, first: int) -> list[Step]:
        """The steps from the pass with this number on, each of which ends where the next pass begins."""
        pairs = pairwise(self.passes[first:])
        return [
            Step(ended.clock - begun.clock, after.clock - ended.clock, after.cpu - ended.cpu, number)
            for number, ((begun, ended), (after, _)) in enumerate(pairs, first)
        ]


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
    """A socket that the messages of a step are written to, as in an engine, and at once read from."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()

    def send(self, connection: int, messages: list[ToApi]) -> None:
        """Write messages, and discard them at the other end."""
        self._near.send(encode_frame(messages))
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
            length = WARM_UP + number + 2 * count + 2
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
        first = len(session.passes) + WARM_UP
        for _ in range(WARM_UP + number + 1):
            loop.run_one_step()
        found[count] = session.steps(first)
        while not scheduler.is_idle:
            loop.run_one_step()
    return found
