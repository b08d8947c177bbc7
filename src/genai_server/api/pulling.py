"""What the API knows of fetching models from a hub; `cli/serve/loaders.py` passes in what does it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PullProgress:
    """How much of a file has come."""

    name: str
    # `sha256:…` or `git:…`.
    digest: str
    # In bytes.
    total: int
    completed: int


# Fetches the model in a folder of a repository ("" for its only model) and returns its directory. Tells its progress as
# it goes; what that raises ends it. Blocks. Raises PullFailed.
PullModel = Callable[[str, str, Callable[[PullProgress], None]], Path]
