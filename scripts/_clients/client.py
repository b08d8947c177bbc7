"""What is known of a client: what is installed for it, and how it is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Registry(Enum):
    """Where packages come from."""

    PYPI = "PyPI"
    NPM = "npm"


class Model(Enum):
    """What the server runs."""

    # Does what prompts say. Its context has room for coding agents.
    SCRIPTED = "scripted"
    # The demo model, for what needs a tokenizer or log probabilities.
    DEMO = "demo"
    # The demo models for embeddings and reranking.
    POOLED = "pooled"


@dataclass(frozen=True)
class Check:
    """One thing that a client was to do."""

    name: str
    # Why it failed; "" if it did not.
    why: str = ""


@dataclass(frozen=True)
class Place:
    """Where a client runs."""

    # Below the work folder, the client's own.
    folder: Path
    # Holds the client's commands.
    commands: Path
    # The server's, without /v1.
    url: str


@dataclass(frozen=True)
class Client:
    """A library, suite or agent. Its checks raise OSError or ValueError if they cannot be made."""

    name: str
    # The version of the first is shown.
    packages: tuple[str, ...]
    check: Callable[[Place], list[Check]]
    registry: Registry = Registry.PYPI
    model: Model = Model.SCRIPTED
    # The heading of docs/clients.md whose lines are run; "" for none.
    recipe: str = ""
    # Below node_modules: fetches or links the program after the installation.
    postinstall: str = ""
    # Brings what is no package into the client's folder, and gives its version. Raises PeerUnavailable.
    fetch: Callable[[Path], str] | None = None


@dataclass(frozen=True)
class Result:
    """What became of a client."""

    name: str
    version: str
    checks: tuple[Check, ...] = ()
    # Why no check was made; "" if some were.
    missing: str = ""

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.why]
