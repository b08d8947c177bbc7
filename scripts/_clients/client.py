"""A client: what to install for it, and how to check it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class Registry(Enum):
    """Where packages come from."""

    PYPI = "PyPI"
    NPM = "npm"


class Model(Enum):
    """The server's model."""

    # Follows the script in the prompt. Its context is large enough for coding agents.
    SCRIPTED = "scripted"
    # The demo models for embeddings and reranking.
    POOLED = "pooled"
    # A small model of the tests that reads images; what it says has no meaning.
    IMAGES = "images"
    # The demo model for speech.
    SPEECH = "speech"


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
    # The server's URL, without /v1.
    url: str
    # The URL of a server whose model reads images; "" for a client that sends none.
    images_url: str
    # What is wrong with the prompts that a body becomes with other models' templates; of a path and the body.
    faults: Callable[[str, dict[str, Any]], list[str]]


@dataclass(frozen=True)
class Client:
    """A library, agent or application. Its checks raise OSError or ValueError if they cannot be made."""

    name: str
    # The version of the first is shown.
    packages: tuple[str, ...]
    check: Callable[[Place], list[Check]]
    registry: Registry = Registry.PYPI
    model: Model = Model.SCRIPTED
    # Whether it also sends an image, to another server.
    images: bool = False
    # The heading of docs/clients.md or a guide whose lines are run; "" for none.
    recipe: str = ""
    # Below node_modules: fetches or links the program after the installation.
    postinstall: str = ""
    # The command of the Python that runs it, if not this one.
    python: str = ""


@dataclass(frozen=True)
class Result:
    """The result of a client."""

    name: str
    version: str
    checks: tuple[Check, ...] = ()
    # Why no check was made; "" if some were.
    missing: str = ""

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.why]
