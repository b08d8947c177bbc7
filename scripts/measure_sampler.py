"""Measure the cost of choosing a step's tokens: one row after another, as in the engine, for a large vocabulary.

Logits are random: of a normal distribution, as of a model that is unsure, and with one clear favourite among them, as
mostly in a text. Times are the processor's, so that other work counts little. Run it with the interpreter of `.venv`;
it takes some seconds.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
from _models.table import table
from numpy.typing import NDArray

from genai_server.engine.sampling.sampler import Sampler
from genai_server.engine.scores import Scores
from genai_server.messages.generation_request import Sampling

PROMPT = list(range(1000, 1500))
SEED = 1
# Standard deviations above the others.
FAVOURITE = 20.0
SAMPLINGS = {
    "greedy": Sampling(),
    "temperature 0.8": Sampling(temperature=0.8, seed=SEED),
    "temperature 0.8, top_k 50": Sampling(temperature=0.8, top_k=50, seed=SEED),
    "temperature 0.8, top_k 5000": Sampling(temperature=0.8, top_k=5000, seed=SEED),
    "temperature 0.8, top_k 100000": Sampling(temperature=0.8, top_k=100_000, seed=SEED),
    "temperature 0.8, top_p 0.95": Sampling(temperature=0.8, top_p=0.95, seed=SEED),
    "temperature 0.8, min_p 0.05": Sampling(temperature=0.8, min_p=0.05, seed=SEED),
    "temperature 0.8, top_k 50, top_p 0.95, all penalties": Sampling(
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        seed=SEED,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16, metavar="N", help="sequences of a step (default 16)")
    parser.add_argument("--vocabulary", type=int, default=151_936, metavar="N", help="logits of each (default 151936)")
    parser.add_argument("--steps", type=int, default=15, metavar="N", help="steps of each median (default 15)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    unsure = np.random.default_rng(SEED).normal(size=(arguments.rows, arguments.vocabulary)).astype(np.float32)
    clear = unsure.copy()
    clear[:, arguments.vocabulary // 2] += FAVOURITE
    rows = [["sampling", "ms a step, one clear favourite", "ms a step, unsure"]]
    for name, sampling in SAMPLINGS.items():
        rows.append([name, *(f"{1000 * seconds(sampling, logits, arguments.steps):.1f}" for logits in (clear, unsure))])
    print(table(rows, markdown=arguments.markdown))


def seconds(sampling: Sampling, logits: NDArray[np.float32], steps: int) -> float:
    """The processor's median time of a step, after one that warms up."""
    samplers = [Sampler(sampling, PROMPT) for _ in logits]
    times: list[float] = []
    for _ in range(steps + 1):
        started = time.process_time()
        for sampler, row in zip(samplers, logits, strict=True):
            sampler.sample(Scores(row[np.newaxis]))
        times.append(time.process_time() - started)
    return median(times[1:])


if __name__ == "__main__":
    main()
