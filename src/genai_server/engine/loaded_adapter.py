"""An adapter as the sequences of an engine have it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """Lives as long as requests may choose it, and as long as a sequence has it."""

    # Of the file's content. Keys and values depend on it.
    digest: str
    # What the runner has loaded of the file.
    loaded: Any
