"""A client: what to install for it, and how to check it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Check:
    """One check of a client."""

    name: str
    # Why it failed; "" if it did not.
    why: str = ""


@dataclass(frozen=True)
class Place:
    """Where a client runs."""

    # The client's own folder, below the work folder.
    folder: Path
    # Holds the client's commands.
    commands: Path
    # The URLs of the scripted model's server and of the demo models', without /v1.
    url: str
    models_url: str


@dataclass(frozen=True)
class Client:
    """A library, agent or application. Its checks raise OSError or ValueError if they cannot be made."""

    name: str
    # The version of the first is shown.
    packages: tuple[str, ...]
    check: Callable[[Place], list[Check]]
    # Whether the packages come from npm, and not from PyPI.
    npm: bool = False
    # The heading of docs/clients.md or a guide whose lines are run; "" for none.
    recipe: str = ""
    # Below node_modules: fetches or links the program after the installation.
    postinstall: str = ""
    # The command of the Python that runs it, if not this one.
    python: str = ""
