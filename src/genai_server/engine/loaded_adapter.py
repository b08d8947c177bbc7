"""A LoRA adapter that an engine has loaded."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """A loaded LoRA adapter. It stays in memory as long as requests may choose it or a sequence uses it."""

    # Of the file's content. Keys and values depend on it.
    digest: str
    # What the runner has loaded of the file.
    loaded: Any
