"""Send hostile requests to all of a server's POST endpoints, and report which of its promises it has kept.

Valid bodies with their values, bytes and framing changed, and long lists of small wrong things, go to the scripted
runner: no answer may be a 500, take more than a second, or make the server hold more memory or files, and /healthz must
answer all the time. Findings are reported with the numbers that reproduce them.
Linux only; exits with status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from _load.attempts import attempt
from _load.footprint import Footprint, grown, growth, usual
from _load.fuzzing import LONGEST_PULSE, LONGEST_SECONDS, Findings, Fuzzer, targets
from _load.pulse import pulse
from _load.server import run_server
from _models.table import table

SETTINGS = {
    "GENAI_DEVICE": "scripted",
    # By the files of the two last ones, their engines give vectors and scores.
    "GENAI_MODELS": "onnx-genai=models/demo,vectors=models/demo-embeddings,scores=models/demo-reranker",
    "GENAI_MAX_LENGTH": "1000",  # an answer of 2,000 tokens along a grammar takes 0.8 s alone
    "GENAI_RESPONSE_STORE_BYTES": "1000000",  # soon full, so that its contents do not count as growth
    "HF_HUB_OFFLINE": "1",  # a pull is refused before any request to a hub
}
# Of memory. The caches and the heap of the API process are full after a thousand attempts, and it is level from there
# on; a shorter run compares what is still filling.
_MAX_GROWTH = 0.10
_MAX_GROWTH_WHILE_FILLING = 0.25
_LONG = 2_500
_MAX_SHOWN = 20
_MAX_PRINTED = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="attempts in all (100000)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--workers", type=int, default=2, help="API processes (2)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this attempt of the seed, and show what it sends")
    growth_help = f"of memory that is allowed ({_MAX_GROWTH}, below {_LONG} attempts {_MAX_GROWTH_WHILE_FILLING})"
    parser.add_argument("--growth", type=float, help=growth_help)
    parser.add_argument("--markdown", action="store_true", help="print the tables as a document has them")
    arguments = parser.parse_args()
    numbers = range(arguments.count) if arguments.only is None else range(arguments.only, arguments.only + 1)
    started = time.monotonic()
    settings = SETTINGS | {"WORKERS": str(arguments.workers)}
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder), settings | stored(folder)) as server:
        asked = targets(server)
        if arguments.only is not None:
            print(f"{attempt(arguments.seed, arguments.only, asked.paths, asked.places)}"[:_MAX_PRINTED])
        with pulse(server.port) as beats:
            found = asyncio.run(Fuzzer(server, arguments.seed, asked, beats).run(numbers))
        tracebacks = (Path(folder) / "server.log").read_text(errors="replace").count("Traceback")
    allowed = arguments.growth
    if allowed is None:
        allowed = _MAX_GROWTH if arguments.count >= _LONG else _MAX_GROWTH_WHILE_FILLING
    broken = complaints(found, allowed, arguments)
    print(table(report(found), markdown=arguments.markdown), end="\n\n")
    seconds = time.monotonic() - started
    print(f"{seconds:.0f} s, {len(asked.paths)} endpoints, seed {arguments.seed}, {tracebacks} tracebacks in the log")
    for name, course in courses(found):
        tenths = [course[(len(course) - 1) * tenth // 10].own for tenth in range(11)]
        print(f"{name}, its own MB every tenth of the time: {', '.join(f'{size / 1e6:.1f}' for size in tenths)}")
    for complaint in broken[:_MAX_SHOWN]:
        print(f"BROKEN: {complaint}")
    print(f"broken promises: {len(broken) or 'none'}")
    sys.exit(bool(broken))


def stored(folder: str) -> dict[str, str]:
    """The settings that have the API processes share what they store."""
    return {"GENAI_FILES_DIR": f"{folder}/files"}


def complaints(found: Findings, max_growth: float, arguments: argparse.Namespace) -> list[str]:
    """All failures, with the commands that reproduce them."""
    again = f"again: scripts/fuzz --seed {arguments.seed} --only"
    broken = [f"{what}\n  {again} {number}" for number, what in sorted(found.failures)]
    if found.restarts:
        broken.append(f"engines died {found.restarts} times")
    for name, course in courses(found):
        before, after = compared(course)
        broken += [
            f"{promise}: {name}: {before} to {after}" for promise in grown(before, after, max_growth, arguments.workers)
        ]
    return broken


def report(found: Findings) -> list[list[str]]:
    """Figures."""
    answered = sorted((status, number) for status, number in found.statuses.items())
    statuses = ", ".join(f"{number} × {status or 'hung up'}" for status, number in answered)
    rows = [["what", "figure"], ["attempts", f"{sum(found.by_path.values())}"], ["answers", statuses]]
    rows.append([f"slowest answer (at most {LONGEST_SECONDS:g} s)", f"{found.slowest:.2f} s"])
    slow = f", {found.slow_pulses} above" if found.slow_pulses else ""
    rows.append([f"slowest /healthz (at most {LONGEST_PULSE:g} s{slow})", f"{found.slowest_pulse:.3f} s"])
    for name, course in courses(found):
        before, after = compared(course)
        rows.append([f"{name}: PSS", f"{before.pss / 1e6:.1f} → {after.pss / 1e6:.1f} MB"])
        rows.append([f"{name}: growth", f"{100 * growth(before, after):.1f} %"])
        levels = f"{before.handles} → {after.handles}, {before.threads} → {after.threads}"
        rows.append([f"{name}: handles, threads", levels])
    return rows


def courses(found: Findings) -> list[tuple[str, list[Footprint]]]:
    """The footprint of each process over time."""
    return [("API processes", found.api), ("engines", found.engines)]


def compared(course: list[Footprint]) -> tuple[Footprint, Footprint]:
    """What was usual in the middle fifth, when caches are full, and in the last: the largest bodies and grammars come
    and go in between.
    """
    fifth = max(1, len(course) // 5)
    return usual(course[2 * fifth : 3 * fifth] or course), usual(course[-fifth:])


if __name__ == "__main__":
    main()
