"""Take the reading of one prompt apart: what ONNX Runtime's operators take, with the model's own weights and in 8 bits.

The prompt is read alone, in chunks, as an engine on a CPU reads it; the figures are those of the median round. Run it
with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from _models.steps import ProfiledSession, Step
from _models.table import table

from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph import DecoderGraph, DoesNotFit, read_decoder_graph
from genai_server.engine.model.weights import int8_model, prepacked_model
from genai_server.engine.process import IDLE_CHUNK
from genai_server.engine.runners.cpu_buffers import CpuBuffers
from genai_server.engine.runners.decoder_session import DecoderSession
from genai_server.engine.runners.layout import Row, lay_out
from genai_server.engine.runners.row_states import RowStates

MIN_SHARE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--tokens", type=int, default=512, help="of the prompt (512)")
    parser.add_argument("--chunk", type=int, default=IDLE_CHUNK, help=f"tokens of a pass ({IDLE_CHUNK})")
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    try:
        graph = read_decoder_graph(arguments.model_dir)
    except DoesNotFit as reason:
        parser.exit(1, f"{arguments.model_dir} does not run in a batch: {reason}\n")
    vocab_size = check_model_directory(arguments.model_dir).vocab_size
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        found: dict[str, Counter[str]] = {}
        for name, directory in (
            ("own weights", prepacked_model(arguments.model_dir, cache)),
            ("8 bits", int8_model(arguments.model_dir, cache)),
        ):
            if directory is not None:
                packed = replace(graph, path=directory / graph.path.name)
                chunks = [arguments.chunk] * (arguments.tokens // arguments.chunk)
                found[name] = profile(packed, vocab_size, chunks, arguments.rounds, Path(folder))
    print(table(rows(found), markdown=arguments.markdown))


def profile(graph: DecoderGraph, vocab_size: int, chunks: list[int], rounds: int, folder: Path) -> Counter[str]:
    """Seconds by operator of the median round, and in total."""
    profiled = ProfiledSession(graph, folder, optimized=True)
    session = DecoderSession(graph, profiled.timed)
    tokens, chance = sum(chunks), np.random.default_rng(1)
    session.use(CpuBuffers(graph, 1, tokens), RowStates(graph, 1))
    taken: dict[int, list[Step]] = {}
    for number in range(rounds):
        read, taken[number] = 0, []
        for chunk in chunks:
            logits = np.empty((1, 1, vocab_size), graph.logits_type)
            layout = lay_out(
                [Row(0, read, chance.integers(0, vocab_size, chunk).tolist())], has_states=graph.has_states
            )
            read += chunk
            binding = session.bind(layout, {graph.logits: logits})
            begun, passes = time.perf_counter(), len(profiled.timed.seconds)
            profiled.timed.run_with_iobinding(binding, None)
            taken[number].append(Step(time.perf_counter() - begun, profiled.timed.seconds[-1], 0.0, passes))
    wholes = {number: sum(step.whole for step in steps) for number, steps in taken.items()}
    middle = sorted(wholes, key=lambda number: wholes[number])[rounds // 2]
    return profiled.operators(taken)[middle] + Counter({"the whole prompt": wholes[middle]})


def rows(found: dict[str, Counter[str]]) -> list[list[str]]:
    """A row for each operator, the longest first."""
    names = [name for name, _ in sum(found.values(), Counter[str]()).most_common()]
    least = {weights: MIN_SHARE * seconds["the whole prompt"] for weights, seconds in found.items()}
    shown = [name for name in names if any(seconds[name] >= least[weights] for weights, seconds in found.items())]
    body = [[name, *(f"{1000 * seconds[name]:.0f}" for seconds in found.values())] for name in shown]
    return [["operator", *(f"ms, {weights}" for weights in found)], *body]


if __name__ == "__main__":
    main()
