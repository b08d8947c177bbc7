"""Where the schemas come from: drawn at random, or files."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .drawn import drawn_schema


@dataclass(frozen=True)
class Source:
    """Schemas by number, the same for the same seed."""

    seed: int
    # Files with a schema each; without files, schemas are drawn.
    files: Sequence[Path] = ()
    # Whether they are not strict, and followed where possible.
    best_effort: bool = False

    def schema(self, number: int) -> dict[str, Any]:
        """The schema of this number."""
        if not self.files:
            return drawn_schema(self.seed, number)
        found: dict[str, Any] = json.loads(self.files[number].read_text(encoding="utf-8"))
        return found


def sampled_files(folder: Path, count: int, seed: int) -> list[Path]:
    """At most a number of the .json files below a folder."""
    found = sorted(folder.rglob("*.json"))
    return random.Random(seed).sample(found, min(count, len(found)))
