"""Libraries, each checked by a program in its own language, which prints a line of JSON for each check."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from .client import Check, Client, Model, Place, Registry
from .program import run
from .recipe import recipe
from .samples import of_pictures, of_speech

_TABLE = Path(__file__).with_name("libraries.toml")
_PROGRAMS = Path(__file__).with_name("programs")
_SCRIPTS = _PROGRAMS.parents[1]
_SECONDS = 120.0


def library(
    name: str,
    packages: list[str],
    program: str,
    *,
    heading: str = "",
    model: str = Model.SCRIPTED.value,
    images: bool = False,
) -> Client:
    """A library whose checks are a program's, as a row of the table describes it."""

    def check(place: Place) -> list[Check]:
        environment = {"CHECKED_URL": place.url, "PYTHONPATH": str(_SCRIPTS), "PYTHONWARNINGS": "ignore"}
        if images:
            environment |= of_pictures(place.images_url)
        if model == Model.SPEECH.value:
            environment |= of_speech(place.url)
        if heading:
            environment["CHECKED_RECIPE"] = recipe(heading, place.url)
        return _run(program, place, environment)

    registry = Registry.NPM if program.endswith(".mjs") else Registry.PYPI
    return Client(name, tuple(packages), check, registry, Model(model), images, heading)


def _run(program: str, place: Place, environment: dict[str, str]) -> list[Check]:
    if program.endswith(".mjs"):
        # Node.js looks for packages above the program.
        for path in _PROGRAMS.glob("*.mjs"):
            shutil.copy(path, place.folder)
        own = place.commands / "node"
        command: list[str | Path] = [own if own.exists() else "node", place.folder / program]
    else:
        command = [place.commands / "python", _PROGRAMS / program]
    return run(command, environment, place.folder, _SECONDS).checks


LIBRARIES = tuple(library(**row) for row in tomllib.loads(_TABLE.read_text(encoding="utf-8"))["library"])
# The client that is in this environment.
QUICK = LIBRARIES[:1]
