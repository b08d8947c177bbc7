"""Take the reading of one prompt apart: what its operators take.

The prompt is read alone, in chunks, as an engine on a CPU reads it; the figures are those of the median round. Run it
with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from _models.driven import Driven, random_prompt
from _models.steps import TimedSession, graph_as_served
from _models.table import table

from genai_server.engine.model.files import check_model_directory
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.sequence_limits import IDLE_CHUNK, BatchLimits

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
    model, chunk = check_model_directory(arguments.model_dir), min(arguments.chunk, arguments.tokens)
    with tempfile.TemporaryDirectory() as folder:
        graph = graph_as_served(parser, arguments.model_dir, Path(folder) / "cache")
        session = TimedSession(graph, Path(folder))
        longest = arguments.behind + arguments.tokens + 1
        runner = Driven(BatchedRunner(graph, session, model, BatchLimits(1, longest)))
        num_chunks = arguments.tokens // chunk
        found = profile(runner, session, arguments.behind, [chunk] * num_chunks, arguments.rounds)
    least = MIN_SHARE * found["the whole prompt"]
    rows = [[name, f"{1000 * taken:.0f}"] for name, taken in found.most_common() if taken >= least]
    print(table([["operator", "ms"], *rows], markdown=arguments.markdown))


def profile(runner: Driven, session: TimedSession, behind: int, chunks: list[int], rounds: int) -> Counter[str]:
    """Seconds by operator of the median round, and in total, for chunks behind a number of tokens."""
    spans: dict[int, range] = {}
    wholes: dict[int, float] = {}
    for number in range(rounds):
        read = random_prompt(behind, 0) + random_prompt(sum(chunks), number)
        num_cached = runner.open(number, read, len(read) + 1, reuse=behind > 0)
        for start in range(num_cached, behind, IDLE_CHUNK):
            runner.prefill(number, read[start : min(start + IDLE_CHUNK, behind)])
        first, begun, at = len(session.passes), time.perf_counter(), behind
        for chunk in chunks:
            runner.prefill(number, read[at : at + chunk])
            at += chunk
        wholes[number], spans[number] = time.perf_counter() - begun, range(first, len(session.passes))
        runner.close(number)
    middle = sorted(wholes, key=lambda number: wholes[number])[rounds // 2]
    return session.operators(spans)[middle] + Counter({"the whole prompt": wholes[middle]})


if __name__ == "__main__":
    main()
