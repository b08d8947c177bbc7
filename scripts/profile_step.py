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
from dataclasses import replace
from pathlib import Path
from statistics import median

from _models.arguments import numbers
from _models.steps import ProfiledSession, Step, TimedSession, decode_steps
from _models.table import table

from genai_server.engine.graph_description import DoesNotFit
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.model.weights import native_model
from genai_server.messages.generation_request import Sampling

HEAD = ["rows", "ms a step", "in ONNX Runtime", "gap", "CPU ms in the gap", "tokens/s", "against the first"]
# Operators with a smaller share of a step are combined.
MIN_SHARE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument(
        "--rows", type=numbers, default=(1, 16), metavar="N,N…", help="sequences at once (default 1,16)"
    )
    parser.add_argument(
        "--steps", type=int, default=32, metavar="N", help="steps with each number of them (default 32)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of the requests (default 0)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of the requests (default 1)")
    parser.add_argument("--markdown", action="store_true", help="print the tables as a document has them")
    arguments = parser.parse_args()
    directory, rows = arguments.model_dir, arguments.rows
    try:
        graph = read_decoder_graph(directory).in_32_bits()
    except DoesNotFit as reason:
        parser.exit(1, f"{directory} does not run in a batch: {reason}\n")
    sampling = Sampling(arguments.temperature, top_p=arguments.top_p)
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        of_weights = replace(graph, path=native_model(directory, cache) / graph.path.name)
        session = TimedSession(open_session(of_weights, 0))
        found = decode_steps(directory, of_weights, session, rows, arguments.steps, sampling)
        print(table([HEAD, *times(found)], markdown=arguments.markdown), end="\n\n")
        profiled = ProfiledSession(of_weights, Path(folder))
        found = decode_steps(directory, of_weights, profiled.timed, rows, arguments.steps, sampling)
        head = ["operator", *(f"ms a step, {count} rows" for count in rows)]
        operators = shares(profiled.operators(found), arguments.steps)
        print(table([head, *operators], markdown=arguments.markdown), end="\n\n")


def times(found: dict[int, list[Step]]) -> Iterator[list[str]]:
    """A row for each number of sequences: medians."""
    first = 0.0
    for rows, steps in found.items():
        whole = median(step.whole for step in steps)
        gap = median(step.gap for step in steps)
        rate = rows / whole
        first = first or rate
        inside = median(step.in_session for step in steps)
        cpu = median(step.cpu_gap for step in steps)
        cells = f"{1000 * inside:.2f}", f"{1000 * gap:.2f} ({gap / whole:.1%})", f"{1000 * cpu:.2f}"
        yield [f"{rows}", f"{1000 * whole:.2f}", *cells, f"{rate:.0f}", f"{rate / first:.2f}"]


def shares(operators: dict[int, Counter[str]], steps: int) -> Iterator[list[str]]:
    """A row for each operator, the longest of the last number of sequences first, and one for the rest."""
    totals = {rows: found.total() for rows, found in operators.items()}
    *_, last = operators.values()
    rest: dict[int, float] = dict.fromkeys(operators, 0.0)
    for name, _ in last.most_common():
        if all(found[name] < MIN_SHARE * totals[rows] for rows, found in operators.items()):
            for rows, found in operators.items():
                rest[rows] += found[name]
        else:
            yield [name, *(cell(found[name], totals[rows], steps) for rows, found in operators.items())]
    yield ["others", *(cell(seconds, totals[rows], steps) for rows, seconds in rest.items())]


def cell(seconds: float, total: float, steps: int) -> str:
    """Milliseconds a step, and the share."""
    return f"{1000 * seconds / steps:.2f} ({seconds / total:.0%})"


if __name__ == "__main__":
    main()
