"""An engine's passes, taken apart: what ONNX Runtime takes, by operator, and what the engine does between passes."""

from __future__ import annotations

import argparse
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from genai_server.engine.api_connections import Connected
from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.loop import EngineLoop
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.model.weights import native_model
from genai_server.engine.profiling.profile_files import ProfileFolder
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.runners.sequence_limits import IDLE_CHUNK, BatchLimits
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.messages.engine_protocol import Submit, ToApi
from genai_server.messages.frames import encode_frame
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.profiles.profile_files import read_runs

from .driven import random_prompt

MAX_LENGTH, PROMPT_TOKENS = 512, 24
WARM_UP = 4
API = 1


class Pass(NamedTuple):
    """When a pass of a session began and ended, in seconds by the clock and by the calling thread's processor time."""

    begun: float
    ended: float
    cpu_begun: float
    cpu_ended: float


class TimedSession:
    """A session of ONNX Runtime for a graph, which records its passes; with a folder, ONNX Runtime profiles it."""

    def __init__(self, graph: DecoderGraph, folder: Path | None = None) -> None:
        self.passes: list[Pass] = []
        self._session = open_session(graph, 0, profile_prefix=str(folder / "step") if folder else "")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        """Run a pass."""
        # The processor time takes longer to read than the clock, and belongs to no gap.
        begun, cpu_begun = time.perf_counter(), time.thread_time()
        self._session.run_with_iobinding(binding, options)
        cpu_ended, ended = time.thread_time(), time.perf_counter()
        self.passes.append(Pass(begun, ended, cpu_begun, cpu_ended))

    def operators(self, spans: Mapping[int, range]) -> dict[int, Counter[str]]:
        """The microseconds of each operator in the passes with these numbers, for each span; ends the profiling."""
        runs = read_runs(Path(self._session.end_profiling()))
        times = {key: Counter[str]() for key in spans}
        for key, span in spans.items():
            for kernel in chain.from_iterable(runs[number].kernels for number in span):
                times[key][kernel.operator] += kernel.self_time
        return times


def graph_as_served(parser: argparse.ArgumentParser, model_dir: Path, cache: Path) -> DecoderGraph:
    """The decoder's graph with the server's own operators, whose packed weights are stored in `cache`.

    Ends the script if the model does not run in a batch.
    """
    try:
        graph = read_decoder_graph(model_dir).in_32_bits()
    except DoesNotFit as reason:
        parser.exit(1, f"{model_dir} does not run in a batch: {reason}\n")
    return replace(graph, path=native_model(model_dir, cache) / graph.path.name)


def decode_steps(
    model_dir: Path, graph: DecoderGraph, session: TimedSession, rows: Sequence[int], number: int, sampling: Sampling
) -> dict[int, range]:
    """Decode in steps of each number of rows, as an engine's main thread does, with messages to a socket.

    Returns which passes of the session were the steps of this number of rows, of which there are `number` after some
    for warming up. One pass more follows each.
    """
    model = check_model_directory(model_dir)
    runner = BatchedRunner(graph, session, model, BatchLimits(max(rows), MAX_LENGTH))
    scheduler = Scheduler(runner, max_running=max(rows), max_waiting=0, prefill_chunk=IDLE_CHUNK, idle_chunk=IDLE_CHUNK)
    runners = RunnerPair(LoadedModel(runner, runner))
    options = RuntimeOptionState(runners, ProfileFolder(Path(), "cpu", max_files=1, max_bytes=1))
    near, far = socket.socketpair()

    def send(_: int, messages: list[ToApi]) -> None:
        near.send(encode_frame(messages))
        far.recv(1 << 20)

    loop = EngineLoop(runners, scheduler, options, model_guidance(model_dir, model), send)
    loop.inbox.put((API, Connected()))
    found = {}
    for count in rows:
        # Each is decoded while the prompts after it are read, too.
        length = WARM_UP + number + 2 * count + 2
        for key in range(count):
            prompt = random_prompt(PROMPT_TOKENS, key)
            request = GenerationRequest(f"r{key}", prompt, length, MAX_LENGTH, sampling, ignore_eos=True)
            loop.inbox.put((API, Submit(key, request)))
        loop.run_one_step()
        while any(not sequence.is_decoding for sequence in scheduler.running):
            loop.run_one_step()
        first = len(session.passes) + WARM_UP
        for _ in range(WARM_UP + number + 1):
            loop.run_one_step()
        found[count] = range(first, first + number)
        while not scheduler.is_idle:
            loop.run_one_step()
    return found
