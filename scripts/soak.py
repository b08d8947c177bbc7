"""Keep a server under full load, with everything that may happen to it, and report which of its promises it has kept.

Two dozen clients send requests to a model in exact mode: valid and invalid ones, streamed and plain, on all
generating endpoints. Some disconnect, some are cancelled by the operator, some read slowly, some store conversations
or load other models on demand, while profiling is switched on and off and the engine is killed repeatedly. Half of the
time has no kills, and ends with SIGTERM under load. Linux only; exits with status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from _load.asked import MAX_LENGTH, MODEL, ON_DEMAND
from _load.footprint import grown, growth
from _load.pulse import LONGEST_PULSE, pulse
from _load.server import DEMO, run_server
from _load.soaking import CLIENTS, DRAIN_SECONDS, Found, Plan, Soak
from _models.table import table

MAX_GROWTH = 0.03
# API processes.
WORKERS = 2
SETTINGS = {
    # The model that most requests name, and one of the others.
    "GENAI_MAX_MODELS": "2",
    "GENAI_EXACT": "true",
    "GENAI_RESPONSE_STORE_SIZE": "512",
    "GENAI_MAX_LENGTH": str(MAX_LENGTH),
    "GENAI_DRAIN_TIMEOUT": str(DRAIN_SECONDS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model-dir", type=Path, default=DEMO, metavar="DIR", help="with a chat template (models/demo)"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="with kills (30)")
    parser.add_argument("--without-kills", type=float, help="minutes that follow without kills (half of these)")
    parser.add_argument("--growth", type=float, default=MAX_GROWTH, help="of memory that is allowed (0.03)")
    parser.add_argument("--pulse", type=float, default=LONGEST_PULSE, help="slowest /healthz that is allowed (0.25)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    minutes = arguments.minutes
    without_kills = minutes / 2 if arguments.without_kills is None else arguments.without_kills
    plan = Plan(60 * minutes, 60 * without_kills)
    print(f"seed {arguments.seed}; {CLIENTS} clients; {plan}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = SETTINGS | {
            "GENAI_MODELS": ",".join(f"{model}={arguments.model_dir.resolve()}" for model in (MODEL, *ON_DEMAND)),
            "GENAI_RESPONSE_STORE_FILE": f"{folder}/responses",
            "WORKERS": str(WORKERS),
        }
        with run_server(Path(folder), settings) as server, pulse(server.port) as beats:
            found = asyncio.run(Soak(server, Path(folder) / "profiles", plan, arguments.seed, beats).run())
    judge(found, arguments)
    print(table(requests(found), markdown=True), end="\n\n")
    print(table(processes(found), markdown=True), end="\n\n")
    print(f"{found.seconds:.0f} s, {found.kills} kills, {found.switches} profiling switches")
    print(
        f"slowest /healthz {found.slowest_pulse:.3f} s; stopped {found.seconds_to_stop:.1f} s after SIGTERM under load"
    )
    for example in found.books.examples:
        print(f"BROKEN: {example}"[:2000])
    print(f"broken promises: {dict(found.books.broken) or 'none'}")
    sys.exit(bool(found.books.broken))


def judge(found: Found, allowed: argparse.Namespace) -> None:
    """Check the promises about the processes."""
    if found.slowest_pulse > allowed.pulse:
        found.books.accuse("/healthz answers in time", f"{found.slowest_pulse:.3f} s")
    kinds = (("API processes", found.api, WORKERS), ("engine", found.engine, 1))
    for name, (before, after), processes in kinds:
        for promise in grown(before, after, allowed.growth, processes):
            found.books.accuse(promise, f"{name}: {before} to {after}")


def requests(found: Found) -> list[list[str]]:
    """How requests ended, by kind."""
    rows = [["requests", "ended", "number"]]
    kinds = Counter(kind for kind, _ in found.books.ends.elements())
    for kind in dict(kinds.most_common()):
        ends = [(end, number) for (of, end), number in found.books.ends.items() if of == kind]
        rows += [[kind, end, f"{number}"] for end, number in sorted(ends, key=lambda pair: -pair[1])]
    return [*rows, ["all", "", f"{sum(kinds.values())}"]]


def processes(found: Found) -> list[list[str]]:
    """The footprints of the processes."""
    rows = [["process", "PSS, MB", "at the end", "its own, MB", "at the end", "growth", "handles", "threads"]]
    for name, (before, after) in (("API, over the whole", found.api), ("engine, without kills", found.engine)):
        sizes = [f"{size / 1e6:.1f}" for size in (before.pss, after.pss, before.own, after.own)]
        levels = [f"{before.handles} → {after.handles}", f"{before.threads} → {after.threads}"]
        rows.append([name, *sizes, f"{100 * growth(before, after):.1f} %", *levels])
    return rows


if __name__ == "__main__":
    main()
