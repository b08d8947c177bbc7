"""Measures a model's prefill and decode rates on this machine, by threads, batch and prefill chunk."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from genai_server.engine.decoder_graph import DoesNotFit
from genai_server.engine.model.files import check_model_directory, read_config
from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.native_library import why_not_native
from genai_server.engine.model.session import open_session
from genai_server.engine.model.session_options import with_found_libraries
from genai_server.engine.model.weights import native_model, prepacked_model
from genai_server.engine.runners.bare_sequences import open_bare, read_all
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.lengths import BatchLimits
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.sequence import Sequence
from genai_server.options.device import DeviceOptions
from genai_server.timing import Clock

# Prompt tokens of each decoding row.
_PROMPT = 16
_FEWEST_PASSES = 3
_DEFAULT_BITS = 4  # of the operator MatMulNBits


@dataclass(frozen=True)
class Tuned:
    """A model to be measured on the CPU with a device's options."""

    model_dir: Path
    # Keeps packed weights; None for none.
    cache_dir: Path | None
    options: DeviceOptions
    max_length: int
    # If False, requests run one by one even if the model can be batched.
    batched: bool = True

    def open(self, threads: int, rows: int) -> Runner:
        """The runner that would serve the model: a batch of that many rows, or one Generator if the model cannot be
        batched.
        """
        model = check_model_directory(self.model_dir)
        options = with_found_libraries(self.options, self.model_dir)
        try:
            if not self.batched or why_not_native(options, self.cache_dir) is not None:
                raise DoesNotFit
            graph = read_decoder_graph(native_model(self.model_dir, self.cache_dir, options)).in_32_bits()
            session = open_session(graph, threads, options=options)
        except DoesNotFit:
            return OgGeneratorRunner(prepacked_model(self.model_dir, self.cache_dir, options), "cpu", threads, options)
        limits = BatchLimits(rows, min(self.max_length, model.context_length))
        return BatchedRunner(graph, session, model, limits, run_entries=options.run)


def prefill_rate(runner: Runner, chunk: int, length: int, seconds: float, clock: Clock = time.perf_counter) -> float:
    """Prompt tokens per second, read in chunks from the beginning of a prompt."""
    tokens = [1] * chunk

    def read() -> None:
        sequence = open_bare(runner, tokens, length)
        try:
            read_all(runner, [sequence])
        finally:
            runner.close(sequence.id)

    return chunk / _time_of_one(read, seconds, clock)


def decode_rate(runner: Runner, rows: int, length: int, seconds: float, clock: Clock = time.perf_counter) -> float:
    """Tokens per second of this number of rows together."""
    sequences: list[Sequence] = []
    num_left = length - _PROMPT

    def decode() -> None:
        for sequence in sequences:
            sequence.append(1)
        read_all(runner, sequences)

    try:
        for _ in range(rows):
            sequences.append(open_bare(runner, [1] * _PROMPT, length))
            read_all(runner, sequences[-1:])
        return rows / _time_of_one(decode, seconds, clock, most=num_left)
    finally:
        for sequence in sequences:
            runner.close(sequence.id)


def _time_of_one(act: Callable[[], object], seconds: float, clock: Clock, most: int = 1_000_000) -> float:
    """The median time of a call, after a first one to warm up: of as many calls as fit into this number of seconds."""
    act()
    times: list[float] = []
    started = clock()
    while len(times) + 1 < most and (len(times) < _FEWEST_PASSES or clock() - started < seconds):
        before = clock()
        act()
        times.append(clock() - before)
    return statistics.median(times)


def quantized_blocks(model_dir: Path) -> list[tuple[int, int]]:
    """Bits and block sizes of the quantized weights; empty without any. Reads the graph, not the weights."""
    path = model_dir / str(read_config(model_dir)["model"]["decoder"]["filename"])
    graph = onnx.load(str(path), load_external_data=False).graph
    attributes = [{a.name: a.i for a in node.attribute} for node in graph.node if node.op_type == "MatMulNBits"]
    return sorted({(found.get("bits", _DEFAULT_BITS), found["block_size"]) for found in attributes})
