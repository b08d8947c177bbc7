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

from _models.driven import Driven
from _models.equality import prompt
from _models.steps import ProfiledSession, Step
from _models.table import table

from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.weights import int8_model, prepacked_model
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.lengths import IDLE_CHUNK, BatchLimits
from genai_server.messages.generation_request import ModelInfo

MIN_SHARE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--tokens", type=int, default=512, help="of the prompt (512)")
    parser.add_argument("--chunk", type=int, default=IDLE_CHUNK, help=f"tokens of a pass ({IDLE_CHUNK})")
    parser.add_argument("--behind", type=int, default=0, metavar="N", help="tokens that are read before, untimed (0)")
    parser.add_argument(
        "--whole-past", action="store_true", help="layers with a window have all tokens in their buffers, not the last"
    )
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    try:
        graph = read_decoder_graph(arguments.model_dir)
    except DoesNotFit as reason:
        parser.exit(1, f"{arguments.model_dir} does not run in a batch: {reason}\n")
    if arguments.whole_past:
        graph = replace(graph, windows=dict.fromkeys(graph.windows, arguments.behind + arguments.tokens))
    model = check_model_directory(arguments.model_dir)
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        found: dict[str, Counter[str]] = {}
        for name, directory in (
            ("own weights", prepacked_model(arguments.model_dir, cache)),
            ("8 bits", int8_model(arguments.model_dir, cache)),
        ):
            if directory is not None:
                packed = replace(graph, path=directory / graph.path.name)
                chunk = min(arguments.chunk, arguments.tokens)
                chunks = [chunk] * (arguments.tokens // chunk)
                found[name] = profile(packed, model, chunks, arguments.behind, arguments.rounds, Path(folder))
    print(table(rows(found), markdown=arguments.markdown))


def profile(
    graph: DecoderGraph, model: ModelInfo, chunks: list[int], behind: int, rounds: int, folder: Path
) -> Counter[str]:
    """Seconds by operator of the median round, and in total, for chunks behind a number of tokens."""
    profiled = ProfiledSession(graph, folder, optimized=True)
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
            begun, passes = time.perf_counter(), len(profiled.timed.seconds)
            runner.prefill(number, read[:chunk])
            read = read[chunk:]
            taken[number].append(Step(time.perf_counter() - begun, profiled.timed.seconds[-1], 0.0, passes))
        runner.close(number)
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
