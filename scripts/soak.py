"""Keep a server under full load, with everything that may happen to it, and say which of its promises it has kept.

Two dozen clients ask the demo model in exact mode: right and wrong requests, streamed and plain, on all endpoints that
generate; some leave, some are ended by the operator, some read slowly, while profiling is switched on and off and the
engine is killed again and again. Then half of the time without kills. Linux only; ends with status 1 when a promise is
broken.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from _load.asked import MAX_LENGTH
from _load.footprint import grown, growth
from _load.server import DEMO, run_server
from _load.soaking import CLIENTS, Found, Plan, Soak
from _models.table import table

MOST_GROWTH = 0.03
SETTINGS = {
    "GENAI_MODEL_DIR": str(DEMO),
    "GENAI_EXACT": "true",
    "GENAI_RESPONSE_STORE_SIZE": "64",
    "GENAI_MAX_LENGTH": str(MAX_LENGTH),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="with kills; half as much follows without (30)")
    parser.add_argument("--growth", type=float, default=MOST_GROWTH, help="of memory that is allowed (0.03)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--markdown", action="store_true", help="print the tables as a document has them")
    arguments = parser.parse_args()
    plan = Plan.of(60 * arguments.minutes)
    print(f"seed {arguments.seed}; {CLIENTS} clients; {plan}", flush=True)
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder), SETTINGS) as server:
        found = asyncio.run(Soak(server, Path(folder) / "profiles", plan, arguments.seed).run())
    judge(found, arguments.growth)
    print(table(requests(found), markdown=arguments.markdown), end="\n\n")
    print(table(processes(found), markdown=arguments.markdown), end="\n\n")
    print(f"{found.seconds:.0f} s, {found.kills} kills, {found.switches} profiling switches, {found.profiles} profiles")
    for name, course in found.courses.items():
        tenths = [course[(len(course) - 1) * tenth // 10] for tenth in range(11)]
        print(f"{name}, its own MB every tenth of the time: {', '.join(f'{size / 1e6:.1f}' for size in tenths)}")
    for example in found.books.examples:
        print(f"BROKEN: {example}"[:2000])
    print(f"broken promises: {dict(found.books.broken) or 'none'}")
    sys.exit(bool(found.books.broken))


def judge(found: Found, most_growth: float) -> None:
    """Hold the processes against what is promised of them."""
    for name, (before, after) in (("API process", found.api), ("engine", found.engine)):
        for promise in grown(before, after, most_growth):
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
    """What they held."""
    rows = [["process", "PSS, MB", "at the end", "its own, MB", "at the end", "growth", "handles", "threads"]]
    for name, (before, after) in (("API, over the whole", found.api), ("engine, without kills", found.engine)):
        sizes = [f"{size / 1e6:.1f}" for size in (before.pss, after.pss, before.own, after.own)]
        levels = [f"{before.handles} → {after.handles}", f"{before.threads} → {after.threads}"]
        rows.append([name, *sizes, f"{100 * growth(before, after):.1f} %", *levels])
    return rows


if __name__ == "__main__":
    main()
