"""Take the reading of one prompt apart: what its operators take.

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

from _models.driven import Driven
from _models.equality import prompt
from _models.steps import ProfiledSession, Step
from _models.table import table

from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.weights import native_model
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.sequence_limits import IDLE_CHUNK, BatchLimits
from genai_server.messages.generation_request import ModelInfo

MIN_SHARE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--tokens", type=int, default=512, help="of the prompt (512)")
    parser.add_argument("--chunk", type=int, default=IDLE_CHUNK, help=f"tokens of a pass ({IDLE_CHUNK})")
    parser.add_argument("--behind", type=int, default=0, metavar="N", help="tokens that are read before, untimed (0)")
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    try:
        graph = read_decoder_graph(arguments.model_dir).in_32_bits()
    except DoesNotFit as reason:
        parser.exit(1, f"{arguments.model_dir} does not run in a batch: {reason}\n")
    model = check_model_directory(arguments.model_dir)
    with tempfile.TemporaryDirectory() as folder:
        packed = replace(graph, path=native_model(arguments.model_dir, Path(folder) / "cache") / graph.path.name)
        chunk = min(arguments.chunk, arguments.tokens)
        chunks = [chunk] * (arguments.tokens // chunk)
        found = profile(packed, model, chunks, arguments.behind, arguments.rounds, Path(folder))
    print(table(rows(found), markdown=arguments.markdown))


def profile(
    graph: DecoderGraph, model: ModelInfo, chunks: list[int], behind: int, rounds: int, folder: Path
) -> Counter[str]:
    """Seconds by operator of the median round, and in total, for chunks behind a number of tokens."""
    profiled = ProfiledSession(graph, folder)
    tokens = behind + sum(chunks)
    runner = Driven(BatchedRunner(graph, profiled.timed, model, BatchLimits(1, tokens + 1)))
    taken: dict[int, list[Step]] = {}
    for number in range(rounds):
        read, taken[number] = prompt(behind, 0) + prompt(sum(chunks), number), []
        num_cached = runner.open(number, read, tokens + 1, reuse=behind > 0)
        for start in range(num_cached, behind, IDLE_CHUNK):
            runner.prefill(number, read[start : min(start + IDLE_CHUNK, behind)])
        read = read[behind:]
        for chunk in chunks:
            begun, passes = time.perf_counter(), len(profiled.timed.passes)
            runner.prefill(number, read[:chunk])
            read = read[chunk:]
            pass_begun, pass_ended = profiled.timed.passes[-1]
            inside = pass_ended.clock - pass_begun.clock
            taken[number].append(Step(inside, time.perf_counter() - begun - inside, 0.0, passes))
        runner.close(number)
    wholes = {number: sum(step.whole for step in steps) for number, steps in taken.items()}
    middle = sorted(wholes, key=lambda number: wholes[number])[rounds // 2]
    return profiled.operators(taken)[middle] + Counter({"the whole prompt": wholes[middle]})


def rows(found: Counter[str]) -> list[list[str]]:
    """A row for each operator, the longest first."""
    least = MIN_SHARE * found["the whole prompt"]
    return [
        ["operator", "ms"],
        *([name, f"{1000 * taken:.0f}"] for name, taken in found.most_common() if taken >= least),
    ]


if __name__ == "__main__":
    main()
