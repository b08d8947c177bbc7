"""Open many connections to a server, each with a request, and check that all are answered or refused with a reason.

There are more than the queue takes; the rest must be refused at once. /healthz is polled all the time. Linux only;
exits with status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import sys
import tempfile
from pathlib import Path

from _load.connecting import Connections, Seen
from _load.server import DEMO, run_server
from _models.table import table

from genai_server.tools.bench.statistics import percentile

_SPARE_HANDLES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=2000, help="open at once (2000)")
    parser.add_argument("--rate", type=float, default=100.0, help="new ones a second (100)")
    parser.add_argument("--health-limit", type=float, default=0.05, help="seconds, of the 99th percentile (0.05)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    # Connections of the last seconds are refused, and stay open until the server closes idle ones.
    settings = {"GENAI_MODEL_DIR": str(DEMO), "GENAI_MAX_QUEUE": str(arguments.connections * 4 // 5)}
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder), settings) as server:
        # Only for this process: the server raises its own limit.
        make_room(arguments.connections)
        gc.disable()
        seen = asyncio.run(Connections(server, arguments.connections, arguments.rate).run())
    broken = complaints(seen, arguments.connections, arguments.health_limit)
    print(table(report(seen, arguments.connections), markdown=arguments.markdown), end="\n\n")
    for complaint in broken[:20]:
        print(f"BROKEN: {complaint}"[:1000])
    print(f"broken promises: {len(broken) or 'none'}")
    sys.exit(bool(broken))


def make_room(connections: int) -> None:
    """Allow this process to open this number of files. Exits if the system's limit is lower."""
    needed = connections + _SPARE_HANDLES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        sys.exit(f"the limit of open files (ulimit -Hn) is {hard}; {needed} are needed")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def complaints(seen: Seen, connections: int, health_limit: float) -> list[str]:
    """All failures."""
    broken = list(seen.broken)
    if seen.max_open < connections:
        broken.append(f"only {seen.max_open} of {connections} connections were open at once")
    if seen.health_failed:
        broken.append(f"/healthz failed {seen.health_failed} times")
    if (slow := percentile(seen.health, 99)) is None or slow > health_limit:
        broken.append(f"/healthz took {slow} s (99th percentile); at most {health_limit} s are promised")
    return broken


def report(seen: Seen, connections: int) -> list[list[str]]:
    """Figures."""
    rows = [["what", "figure"], ["connections", f"{connections}"], ["open at once, at the server", f"{seen.max_open}"]]
    rows += [[end, f"{number}"] for end, number in seen.ends.most_common()]
    rows.append(["opened within", f"{seen.seconds_to_open:.1f} s"])
    rows.append(["answered within", f"{seen.seconds_to_answer:.1f} s"])
    for rank in (50, 99, 100):
        rows.append([f"/healthz, percentile {rank}", f"{1000 * (percentile(seen.health, rank) or 0.0):.1f} ms"])
    return rows


if __name__ == "__main__":
    main()
