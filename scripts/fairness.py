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
from pathlib import Path

from _fairness.bodies import BODIES
from _fairness.clients import ADMIN, ATTACKER, VICTIM
from _fairness.engines import CACHE, MODELS, SCHEDULING
from _fairness.preparation import PREPARATION
from _fairness.scenario import HEAD, Effort, Family, Place, Row, run
from _load.server import DEMO, run_server
from _models.table import table

_SECONDS_TO_START = 300.0
FAMILIES = {family.name: family for family in (SCHEDULING, CACHE, MODELS, PREPARATION, BODIES)}


def main() -> int:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--model-dir", type=Path, default=DEMO, help="to serve (default: models/demo)")
    parser.add_argument("--rounds", type=int, default=3, help="alone and attacked, so often (default: 3)")
    parser.add_argument("--requests", type=int, default=8, help="in each block of a round (default: 8)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only attacks whose names have this text")
    parser.add_argument("--short", action="store_true", help="one round of two requests, whose times are not judged")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.families if name not in FAMILIES]:
        parser.error(f"no family {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    effort = (
        Effort(1, 2, settle=0.5, is_timed=False) if arguments.short else Effort(arguments.rounds, arguments.requests)
    )
    rows = [
        row
        for name in arguments.families or FAMILIES
        for row in measured(FAMILIES[name], arguments.model_dir.absolute(), effort, arguments.only)
    ]
    print(table([HEAD, *(row.cells() for row in rows)], markdown=arguments.markdown))
    wrong = [row for row in rows if not row.is_fair]
    for row in wrong:
        for reason in sorted({*row.refused, *row.disorder}):
            print(f"{row.name}: {reason}")
    print(f"broken promises: {', '.join(row.name for row in wrong) or 'none'}")
    return int(bool(wrong))


def measured(family: Family, model: Path, effort: Effort, only: str = "") -> list[Row]:
    """The rows of a family, with a server of its own."""
    scenarios = [scenario for scenario in family.scenarios if only in scenario.name]
    if not scenarios:
        return []
    with tempfile.TemporaryDirectory(prefix="fairness") as folder:
        settings = common_settings(model) | family.settings_at(Path(folder), model)
        with run_server(Path(folder), settings, _SECONDS_TO_START, key=ADMIN) as server:
            place = Place.at(server.port)
            rows = []
            for scenario in scenarios:
                rows.append(asyncio.run(run(scenario, place, effort)))
                print(f"{family.name}: {'  '.join(rows[-1].cells())}", file=sys.stderr, flush=True)
            return rows


def common_settings(model: Path) -> dict[str, str]:
    """The settings of all families' servers."""
    names = {"alice": ATTACKER, "bob": VICTIM}
    keys = ",".join(f"{name}:{key}" for name, key in names.items())
    return {"GENAI_MODEL_DIR": str(model), "GENAI_API_KEYS": keys, "GENAI_ADMIN_API_KEY": ADMIN}


if __name__ == "__main__":
    sys.exit(main())
