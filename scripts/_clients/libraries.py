"""Libraries, each checked by a program in its own language, which prints a line of JSON for each check."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from .client import Check, Client, Place
from .program import run
from .recipe import recipe
from .samples import transcript, variables

_TABLE = Path(__file__).with_name("libraries.toml")
_PROGRAMS = Path(__file__).with_name("programs")
_SECONDS = 120.0


def library(name: str, packages: list[str], program: str, *, heading: str = "", scripted: bool = True) -> Client:
    """A library whose checks are a program's, as a row of the table describes it."""

    def check(place: Place) -> list[Check]:
        url = place.url if scripted else place.models_url
        environment = {"PYTHONPATH": str(_PROGRAMS.parents[1]), "PYTHONWARNINGS": "ignore", "CHECKED_URL": url}
        environment |= variables(place.models_url)
        if not scripted:
            environment["CHECKED_TRANSCRIPT"] = transcript(url)
        if heading:
            environment["CHECKED_RECIPE"] = recipe(heading, url)
        return run(_command(program, place), environment, place.folder, _SECONDS).checks

    return Client(name, tuple(packages), check, npm=program.endswith(".mjs"), recipe=heading)


def _command(program: str, place: Place) -> list[str | Path]:
    if not program.endswith(".mjs"):
        return [place.commands / "python", _PROGRAMS / program]
    # Node.js looks for packages above the program.
    for path in _PROGRAMS.glob("*.mjs"):
        shutil.copy(path, place.folder)
    return [place.commands / "node", place.folder / program]


LIBRARIES = tuple(library(**row) for row in tomllib.loads(_TABLE.read_text(encoding="utf-8"))["library"])
# The client that is in this environment.
QUICK = LIBRARIES[:1]
