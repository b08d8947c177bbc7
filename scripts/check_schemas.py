"""Draw answers that small random schemas allow, and report which of them break their schema.

Each schema goes through the functions with which the server checks and follows it; its answers are drawn at random over
bytes and over the demo model's tokens. Findings are reported with the number that reproduces them. Exits with status 1
if an answer breaks its schema, or a schema ends the process that follows it.

With `--files`, schemas are those of a folder, such as `data` of https://github.com/guidance-ai/jsonschemabench. With
`--best-effort` they are not strict: answers must fit what is left of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from _models.table import table
from _schemas.checking import Checker
from _schemas.served import serve_all
from _schemas.source import Source, sampled_files
from _schemas.workers import Findings, check_all

_MAX_SHOWN = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="schemas in all (100000)")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of the seed's schemas, begin here (0)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this schema of the seed, and show its answers")
    parser.add_argument("--walks", type=int, default=6, help="answers drawn for each schema (6)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--refusals", type=int, default=0, metavar="N", help="show the N most frequent refusals, and keywords left out"
    )
    parser.add_argument("--served", action="store_true", help="one answer of a server with the demo model to each")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="a sample of its .json files instead")
    parser.add_argument("--best-effort", action="store_true", help="leave out what cannot be followed")
    arguments = parser.parse_args()
    files = sampled_files(arguments.files, arguments.count, arguments.seed) if arguments.files else []
    source = Source(arguments.seed, files, arguments.best_effort)
    if arguments.only is not None:
        print(json.dumps(source.schema(arguments.only)))
        print(checked := Checker(source, arguments.walks, print).check(arguments.only))
        sys.exit(bool(checked.broken))
    started = time.monotonic()
    count = len(files) if arguments.files else arguments.count
    numbers = range(arguments.first, arguments.first + count)
    if arguments.served:
        found = Findings()
        for checked in serve_all(numbers, arguments.seed):
            found.add(checked)
    else:
        found = check_all(numbers, source, arguments.walks, arguments.processes)
    print(table(report(found), markdown=False), end="\n\n")
    print(f"{time.monotonic() - started:.0f} s, seed {arguments.seed}")
    for refusal, number in found.refused.most_common(arguments.refusals):
        print(f"{number:6} × {refusal}")
    for keyword, number in found.left_out.most_common(arguments.refusals):
        print(f"{number:6} × without {keyword}")
    again = f"scripts/check_schemas.py --seed {arguments.seed} --only"
    for number, what in sorted(found.broken)[:_MAX_SHOWN]:
        print(f"BROKEN: {what}\n  again: {again} {number}")
    for number in found.died[:_MAX_SHOWN]:
        print(f"DIED: the process that followed a schema\n  again: {again} {number}")
    sys.exit(bool(found.broken or found.died))


def report(found: Findings) -> list[list[str]]:
    """Figures."""
    count = found.taken + found.refused.total() + len(found.died)
    return [
        ["what", "figure"],
        ["schemas", f"{count}"],
        ["taken", f"{found.taken} ({100 * found.taken / max(1, count):.1f} %)"],
        ["of these, followed in part", f"{found.in_part}"],
        ["answers", f"{found.answers}"],
        ["answers that break their schema", f"{len(found.broken)}"],
        ["schemas of such answers", f"{len({number for number, _ in found.broken})}"],
        ["answers that no validator can judge", f"{found.unjudged}"],
        ["walks without an end", f"{found.unended}"],
        ["processes that died", f"{len(found.died)}"],
        ["slowest schema", f"{found.slowest:.1f} s"],
    ]


if __name__ == "__main__":
    main()
