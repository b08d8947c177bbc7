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
    parser.add_argument("--tokens", type=int, default=512, metavar="N", help="of the prompt (512)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        graph = graph_as_served(parser, arguments.model_dir, Path(folder) / "cache")
        session = TimedSession(graph, Path(folder))
        limits = BatchLimits(1, arguments.tokens + 1)
        runner = Driven(BatchedRunner(graph, session, check_model_directory(arguments.model_dir), limits))
        found = profile(runner, session, arguments.tokens, arguments.rounds)
    least = MIN_SHARE * found["the whole prompt"]
    rows = [[name, f"{taken / 1000:.0f}"] for name, taken in found.most_common() if taken >= least]
    print(table([["operator", "ms"], *rows], markdown=True))


def profile(runner: Driven, session: TimedSession, tokens: int, rounds: int) -> Counter[str]:
    """Microseconds by operator of the median round, and in total, for a new prompt in each round."""
    spans: dict[int, range] = {}
    wholes: dict[int, float] = {}
    for number in range(rounds):
        prompt = random_prompt(tokens, number)
        runner.open(number, prompt, tokens + 1, reuse=False)
        first, began = len(session.passes), time.perf_counter()
        for start in range(0, tokens, IDLE_CHUNK):
            runner.prefill(number, prompt[start : start + IDLE_CHUNK])
        wholes[number], spans[number] = time.perf_counter() - began, range(first, len(session.passes))
        runner.close(number)
    middle = sorted(wholes, key=lambda number: wholes[number])[rounds // 2]
    return session.operators(spans)[middle] + Counter({"the whole prompt": round(1e6 * wholes[middle])})


if __name__ == "__main__":
    main()
