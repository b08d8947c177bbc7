"""The types of fetching models from a hub. `cli/serve/loaders.py` has the implementation, which needs no FastAPI."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PullProgress:
    """Download progress of a file."""

    name: str
    # `sha256:…` or `git:…`.
    digest: str
    # In bytes.
    total: int
    completed: int


# Downloads the model in a folder of a repository ("" for its only model) and returns its directory. Calls the callback
# with progress; an exception raised there stops the download. Blocks. Raises PullFailed. `cli/serve/loaders.py` passes
# in the implementation.
PullModel = Callable[[str, str, Callable[[PullProgress], None]], Path]
