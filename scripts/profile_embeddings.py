"""Take a pass of an encoder apart: what ONNX Runtime's operators take, as served and with ONNX Runtime's own fusions.

The texts have one length, and are read in one pass by the engine's runner on a CPU; the figures are those of the median
round. Run it with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from _models.table import table

from genai_server.engine.runners.pooled import DISABLED_FUSIONS, PooledRunner
from genai_server.engine.scheduling.scheduler_output import Read
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest, PooledText
from genai_server.options.device import DeviceOptions

MIN_SHARE = 0.01
WHOLE = "the whole pass"
OPTIONS = {"as served": DeviceOptions(), "all fusions": DeviceOptions(entries=dict.fromkeys(DISABLED_FUSIONS, "none"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--texts", type=int, default=16, help="of a pass (16)")
    parser.add_argument("--tokens", type=int, default=128, help="of a text (128)")
    parser.add_argument("--threads", type=int, default=2, help="(2)")
    parser.add_argument("--rounds", type=int, default=9, help="(9)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(table(rows(profile(arguments, Path(folder))), markdown=arguments.markdown))


def profile(arguments: argparse.Namespace, folder: Path) -> dict[str, Counter[str]]:
    """Seconds by operator of the median round, and in total; the variants alternate."""
    runners = {
        name: PooledRunner(arguments.model_dir, arguments.threads, options, profile_prefix=str(folder / name))
        for name, options in OPTIONS.items()
    }
    vocab_size = next(iter(runners.values())).model.vocab_size
    ids = np.random.default_rng(1).integers(0, vocab_size, arguments.texts * arguments.tokens)
    texts = [PooledText(arguments.tokens)] * arguments.texts
    request = GenerationRequest("", ids.tolist(), 0, len(ids), texts=texts)
    read = Read.next(Sequence(0, (0, 0), request, lambda: 0.0), len(ids), texts=texts)
    wholes: dict[str, list[float]] = {name: [] for name in runners}
    # The first pass of each allocates memory for the others.
    for _ in range(arguments.rounds + 1):
        for name, runner in runners.items():
            begun = time.perf_counter()
            runner.forward([read])
            wholes[name].append(time.perf_counter() - begun)
    found = {}
    for name, runner in runners.items():
        runner.end_session()
        (written,) = folder.glob(f"{name}*")
        middle = sorted(range(1, arguments.rounds + 1), key=wholes[name].__getitem__)[arguments.rounds // 2]
        found[name] = operators(json.loads(written.read_text()), middle) + Counter({WHOLE: wholes[name][middle]})
    return found


def operators(events: list[dict[str, Any]], number: int) -> Counter[str]:
    """The seconds of each operator in one pass."""
    passes = sorted((event for event in events if event["name"] == "model_run"), key=lambda event: event["ts"])
    begin, end = passes[number]["ts"], passes[number]["ts"] + passes[number]["dur"]
    times = Counter[str]()
    for event in events:
        if event["name"].endswith("_kernel_time") and begin <= event["ts"] <= end:
            times[event["args"]["op_name"]] += event["dur"] / 1e6
    return times


def rows(found: dict[str, Counter[str]]) -> list[list[str]]:
    """A row for each operator, the longest first."""
    names = [name for name, _ in sum(found.values(), Counter[str]()).most_common()]
    shown = [name for name in names if any(times[name] >= MIN_SHARE * times[WHOLE] for times in found.values())]
    body = [[name, *(f"{1000 * times[name]:.0f}" for times in found.values())] for name in shown]
    return [["operator", *(f"ms, {name}" for name in found)], *body]


if __name__ == "__main__":
    main()
