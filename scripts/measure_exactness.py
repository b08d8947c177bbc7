"""Measure what the bits of a model's logits depend on, and the cost of exact answers.

The same tokens are read with others and alone, in chunks and at once, with and without a cached past, by the batched
runner and by og.Generator. Run it with the interpreter of `.venv`; a model of 0.4 billion parameters takes one
to two minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from _models.driven import Driven
from _models.engine_spec import engine_spec
from _models.equality import Tally, prompt
from _models.exactness import MAX_LENGTH, SLOTS, Finding, findings
from _models.table import table

from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.choose import load_model
from genai_server.engine.runners.og_generator import OgGeneratorRunner

TIMED_ROWS = (1, 2, 3, 4, 16)
TIMED_STEPS, ROUNDS = 12, 3
HEAD = ["logits of", "against those of", "compared", "same bits", "largest difference", "another token is best"]
COST_HEAD = ["rows", "ms a step", "ms a step, exact", "ratio"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument(
        "--quick", action="store_true", help="one size for each question; time one and two rows only, once"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables as a document has them")
    arguments = parser.parse_args()
    loaded = load_model(engine_spec(arguments.model_dir, SLOTS, MAX_LENGTH))
    if not isinstance(loaded.main, BatchedRunner):
        parser.exit(1, f"{arguments.model_dir} does not run in a batch: {loaded.batching.reason}\n")
    generator = OgGeneratorRunner(arguments.model_dir, "cpu", threads=0)
    found = list(findings(Driven(loaded.main), Driven(generator), 1 if arguments.quick else None))
    deviation = sum((finding.tally for finding in found), Tally()).deviation
    print(f"{arguments.model_dir}: the logits have a standard deviation of {deviation:.2g}\n")
    print(table([HEAD, *map(columns, found)], markdown=arguments.markdown), end="\n\n")
    rows, rounds = (TIMED_ROWS[:2], 1) if arguments.quick else (TIMED_ROWS, ROUNDS)
    print(table([COST_HEAD, *costs(Driven(loaded.main), rows, rounds)], markdown=arguments.markdown))


def columns(finding: Finding) -> list[str]:
    """A row of the table."""
    tally = finding.tally
    counts = f"{tally.compared}", f"{tally.identical}", f"{tally.difference:.2g}", f"{tally.compared - tally.equal}"
    return [finding.what, finding.against, *counts]


def costs(runner: Driven, timed_rows: Sequence[int], rounds: int) -> Iterator[list[str]]:
    """Seconds of a decode step with this number of rows; the two kinds alternate."""
    for rows in timed_rows:
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds):
            for exact in times:
                times[exact] += decode_times(runner, rows, exact=exact)
        default, exact_one = median(times[False]), median(times[True])
        yield [f"{rows}", f"{1000 * default:.1f}", f"{1000 * exact_one:.1f}", f"{exact_one / default:.2f}"]


def decode_times(runner: Driven, rows: int, *, exact: bool) -> list[float]:
    """Seconds of each step but the first."""
    for number in range(rows):
        tokens = prompt(24, number)
        cached = runner.open(number, tokens, MAX_LENGTH, exact=exact)
        runner.prefill(number, tokens[cached:])
    times = []
    for step in range(TIMED_STEPS + 1):
        started = time.perf_counter()
        runner.decode(range(rows), [3 + step] * rows)
        times.append(time.perf_counter() - started)
    for number in range(rows):
        runner.close(number)
    return times[1:]


if __name__ == "__main__":
    main()
