"""Send a server what no client should, and report which of its promises it has kept.

`--help` of a target says what it sends and which promises those are. Findings are reported with the numbers that
reproduce them. Linux only; exits with status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import sys
import time

from _fuzz import grammars, images, recordings, requests, schemas
from _models.table import table

_MAX_SHOWN = 20
# The module of each target, and the number of its attempts.
TARGETS = {
    "requests": (requests, 100_000),
    "grammars": (grammars, 100_000),
    "images": (images, 20_000),
    "recordings": (recordings, 20_000),
    "schemas": (schemas, 100_000),
}
# Those whose answers have limits of time.
_TIMED = ("requests", "images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    targets = parser.add_subparsers(dest="target", required=True, metavar=" | ".join(TARGETS))
    for name, (module, count) in TARGETS.items():
        target = targets.add_parser(name, description=module.__doc__)
        target.add_argument("--count", type=int, default=count, help=f"attempts in all ({count})")
        target.add_argument("--seed", type=int, default=int(time.time()))
        target.add_argument("--only", type=int, metavar="NUMBER", help="only this attempt of the seed")
        if name in _TIMED:
            help = "how many times as long as on a quiet machine answers may take (1)"
            target.add_argument("--slack", type=float, default=1.0, help=help)
        if name == "schemas":
            schemas.add_arguments(target)
    arguments = parser.parse_args()
    module, _ = TARGETS[arguments.target]
    numbers = range(arguments.count) if arguments.only is None else range(arguments.only, arguments.only + 1)
    started = time.monotonic()
    found = module.run(arguments, numbers)
    rows = [[kind, result, str(number)] for (kind, result), number in sorted(found.results.items())]
    print(table([["what", "result", "number"], *rows], markdown=False), end="\n\n")
    if found.figures:
        print(table([["what", "figure"], *found.figures], markdown=False), end="\n\n")
    seconds, number = found.slowest
    print(f"{time.monotonic() - started:.0f} s, seed {arguments.seed}, slowest {seconds:.2f} s (number {number})")
    again = f"again: scripts/fuzz {arguments.target} --seed {arguments.seed} --only"
    broken = [*(f"{what}\n  {again} {number}" for number, what in sorted(found.failures)), *found.broken]
    for complaint in broken[:_MAX_SHOWN]:
        print(f"BROKEN: {complaint}")
    print(f"broken promises: {len(broken) or 'none'}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
