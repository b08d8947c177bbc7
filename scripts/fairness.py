"""Measure whether one API key holds up another: with one key at its limits, the other's requests stay about as fast as
alone, and none is refused.

usage: .venv/bin/python scripts/fairness.py [FAMILY …] [--rounds N] [--requests N] [--short] [--markdown]

Each family of attacks has a server of its own on loopback. Requests of the key that behaves are measured alone and
attacked, in turns. A row is fair if none of them is refused and the 95th percentile attacked is at most three times
that alone, plus one forward pass or one task of the largest size. The status is 1 if a row is not. With --short no time
is judged: only that no request is refused, and which of the attacker's requests have ended before it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _fairness.attacks import BODIES, CACHE, MODELS, SCHEDULING
from _fairness.clients import ADMIN, ATTACKER, VICTIM
from _fairness.preparation import PREPARATION
from _fairness.scenario import HEAD, Family, Row, run
from _load.server import DEMO, run_server
from _models.table import table

FAMILIES = {family.name: family for family in (SCHEDULING, CACHE, MODELS, PREPARATION, BODIES)}


def main() -> int:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help = f"of {', '.join(FAMILIES)} (default: all)"
    parser.add_argument("families", nargs="*", metavar="FAMILY", choices=[*FAMILIES, []], help=help)
    parser.add_argument("--model-dir", type=Path, default=DEMO, help="to serve (default: models/demo)")
    parser.add_argument("--rounds", type=int, default=3, help="alone and attacked, so often (default: 3)")
    parser.add_argument("--requests", type=int, default=8, help="in each block of a round (default: 8)")
    parser.add_argument("--short", action="store_true", help="one round of two requests, whose times are not judged")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.rounds, arguments.requests = 1, 2
    rows = [row for name in arguments.families or FAMILIES for row in measured(FAMILIES[name], arguments)]
    print(table([HEAD, *(row.cells() for row in rows)], markdown=arguments.markdown))
    wrong = [row for row in rows if not row.is_fair]
    for row in wrong:
        for reason in sorted({*row.refused, *row.disorder}):
            print(f"{row.name}: {reason}")
    print(f"broken promises: {', '.join(row.name for row in wrong) or 'none'}")
    return int(bool(wrong))


def measured(family: Family, arguments: argparse.Namespace) -> Iterator[Row]:
    """The rows of a family, with a server of its own."""
    model = arguments.model_dir.absolute()
    keys = {"GENAI_API_KEYS": f"alice:{ATTACKER},bob:{VICTIM}", "GENAI_ADMIN_API_KEY": ADMIN}
    with tempfile.TemporaryDirectory(prefix="fairness") as folder:
        settings = {"GENAI_MODEL_DIR": f"{model}", **keys, **family.settings_at(Path(folder), model)}
        with run_server(Path(folder), settings, key=ADMIN) as server:
            for scenario in family.scenarios:
                measuring = run(
                    scenario, server.port, arguments.rounds, arguments.requests, is_timed=not arguments.short
                )
                row = asyncio.run(measuring)
                print(f"{family.name}: {'  '.join(row.cells())}", file=sys.stderr, flush=True)
                yield row


if __name__ == "__main__":
    sys.exit(main())
