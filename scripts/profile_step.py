"""Take a batched engine's decode steps apart: ONNX Runtime's pass by operator, and the gap until the next pass begins.

The steps run as in the engine's main thread, with sampling and messages to a socket, but without an API process. ONNX
Runtime's own profile gives the operators' shares. Run it with the interpreter of `.venv`; a model of 0.4 billion
parameters takes two minutes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _models.arguments import numbers
from _models.steps import Pass, TimedSession, decode_steps, graph_as_served
from _models.table import table

from genai_server.messages.generation_request import Sampling

HEAD = ["rows", "ms a step", "in ONNX Runtime", "gap", "CPU ms in the gap", "tokens/s", "against the first"]
# Operators with a smaller share of a step are left out.
MIN_SHARE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--rows", type=numbers, default=(1, 16), metavar="N,N…", help="sequences at once (1,16)")
    parser.add_argument("--steps", type=int, default=32, metavar="N", help="steps with each number of them (32)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of the requests (0)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of the requests (1)")
    arguments = parser.parse_args()
    rows, steps = arguments.rows, arguments.steps
    sampling = Sampling(arguments.temperature, top_p=arguments.top_p)
    with tempfile.TemporaryDirectory() as folder:
        graph = graph_as_served(parser, arguments.model_dir, Path(folder) / "cache")
        session = TimedSession(graph)
        spans = decode_steps(arguments.model_dir, graph, session, rows, steps, sampling)
        found = {count: session.passes[span.start : span.stop + 1] for count, span in spans.items()}
        print(table([HEAD, *times(found)], markdown=True), end="\n\n")
        profiled = TimedSession(graph, Path(folder))
        operators = profiled.operators(decode_steps(arguments.model_dir, graph, profiled, rows, steps, sampling))
        head = ["operator", *(f"ms a step, {count} rows" for count in rows)]
        print(table([head, *shares(operators, steps)], markdown=True), end="\n\n")


def times(found: dict[int, list[Pass]]) -> Iterator[list[str]]:
    """A row for each number of sequences: medians over its passes, the last of which only ends the last step."""
    first = 0.0
    for rows, passes in found.items():
        begun, ended, cpu_begun, cpu_ended = np.array(passes).T
        whole = float(np.median(np.diff(begun)))
        inside = float(np.median((ended - begun)[:-1]))
        gap = float(np.median(begun[1:] - ended[:-1]))
        # What other programs do in the machine adds little to it.
        cpu = float(np.median(cpu_begun[1:] - cpu_ended[:-1]))
        rate = rows / whole
        first = first or rate
        cells = f"{1000 * inside:.2f}", f"{1000 * gap:.2f} ({gap / whole:.1%})", f"{1000 * cpu:.2f}"
        yield [f"{rows}", f"{1000 * whole:.2f}", *cells, f"{rate:.0f}", f"{rate / first:.2f}"]


def shares(operators: dict[int, Counter[str]], steps: int) -> Iterator[list[str]]:
    """A row for each operator but those with small shares, the longest of the last number of sequences first."""
    totals = {rows: found.total() for rows, found in operators.items()}
    *_, last = operators.values()
    for name, _ in last.most_common():
        if any(found[name] >= MIN_SHARE * totals[rows] for rows, found in operators.items()):
            yield [name, *(cell(found[name], totals[rows], steps) for rows, found in operators.items())]


def cell(taken: int, total: int, steps: int) -> str:
    """From microseconds of all steps: milliseconds a step, and the share."""
    return f"{taken / steps / 1000:.2f} ({taken / total:.0%})"


if __name__ == "__main__":
    main()
