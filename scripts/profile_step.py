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
from itertools import pairwise
from pathlib import Path
from statistics import median

from _models.arguments import numbers
from _models.steps import Pass, TimedSession, decode_steps, graph_as_served
from _models.table import table

from genai_server.messages.generation_request import Sampling

HEAD = ["rows", "ms a step", "in ONNX Runtime", "gap", "CPU ms in the gap", "tokens/s", "against the first"]
# Operators with a smaller share of a step are combined.
MIN_SHARE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--rows", type=numbers, default=(1, 16), metavar="N,N…", help="sequences at once (1,16)")
    parser.add_argument("--steps", type=int, default=32, metavar="N", help="steps with each number of them (32)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of the requests (0)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of the requests (1)")
    parser.add_argument("--markdown", action="store_true", help="print the tables as a document has them")
    arguments = parser.parse_args()
    rows, steps = arguments.rows, arguments.steps
    sampling = Sampling(arguments.temperature, top_p=arguments.top_p)
    with tempfile.TemporaryDirectory() as folder:
        graph = graph_as_served(parser, arguments.model_dir, Path(folder) / "cache")
        session = TimedSession(graph)
        spans = decode_steps(arguments.model_dir, graph, session, rows, steps, sampling)
        found = {count: session.passes[span.start : span.stop + 1] for count, span in spans.items()}
        print(table([HEAD, *times(found)], markdown=arguments.markdown), end="\n\n")
        profiled = TimedSession(graph, Path(folder))
        operators = profiled.operators(decode_steps(arguments.model_dir, graph, profiled, rows, steps, sampling))
        head = ["operator", *(f"ms a step, {count} rows" for count in rows)]
        print(table([head, *shares(operators, steps)], markdown=arguments.markdown), end="\n\n")


def times(found: dict[int, list[Pass]]) -> Iterator[list[str]]:
    """A row for each number of sequences: medians over its passes, the last of which only ends the last step."""
    first = 0.0
    for rows, passes in found.items():
        steps = list(pairwise(passes))
        whole = median(after.begun - step.begun for step, after in steps)
        inside = median(step.ended - step.begun for step, _ in steps)
        gap = median(after.begun - step.ended for step, after in steps)
        # What other programs do in the machine adds little to it.
        cpu = median(after.cpu_begun - step.cpu_ended for step, after in steps)
        rate = rows / whole
        first = first or rate
        cells = f"{1000 * inside:.2f}", f"{1000 * gap:.2f} ({gap / whole:.1%})", f"{1000 * cpu:.2f}"
        yield [f"{rows}", f"{1000 * whole:.2f}", *cells, f"{rate:.0f}", f"{rate / first:.2f}"]


def shares(operators: dict[int, Counter[str]], steps: int) -> Iterator[list[str]]:
    """A row for each operator, the longest of the last number of sequences first, and one for the rest."""
    totals = {rows: found.total() for rows, found in operators.items()}
    *_, last = operators.values()
    rest = dict.fromkeys(operators, 0.0)
    for name, _ in last.most_common():
        seconds = {rows: found[name] for rows, found in operators.items()}
        if all(seconds[rows] < MIN_SHARE * totals[rows] for rows in operators):
            rest = {rows: rest[rows] + seconds[rows] for rows in operators}
        else:
            yield [name, *(cell(seconds[rows], totals[rows], steps) for rows in operators)]
    yield ["others", *(cell(rest[rows], totals[rows], steps) for rows in operators)]


def cell(seconds: float, total: float, steps: int) -> str:
    """Milliseconds a step, and the share."""
    return f"{1000 * seconds / steps:.2f} ({seconds / total:.0%})"


if __name__ == "__main__":
    main()
