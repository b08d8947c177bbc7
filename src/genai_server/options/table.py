"""Rows of the option tables, the lookup of a name in them, and suggestions for unknown names."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from genai_server.options.values import Kind


class Reach(Enum):
    """The runners that an option reaches: onnxruntime-genai's model, the batched session, or both."""

    BOTH = "both"
    GENERATOR = "generator"
    BATCHED = "batched"


@dataclass(frozen=True)
class Row:
    """An option."""

    # ONNX Runtime's name.
    name: str
    kind: Kind
    reach: Reach = Reach.BOTH
    # Other names for the same option, such as Triton's.
    also: tuple[str, ...] = ()
    # For an option of Triton with other values: the options that each of its values stands for.
    means: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Why the option cannot be set at all; "" if it can.
    impossible: str = ""
    # Why the option reaches no other runner, where that is not the library's lack.
    why: str = ""

    def options(self, text: str) -> Mapping[str, str]:
        """ONNX Runtime's options, by name, for a checked value."""
        return self.means[text] if self.means else {self.name: text}


def names(rows: Iterable[Row]) -> dict[str, Row]:
    """The rows by all of their names."""
    return {name: row for row in rows for name in (row.name, *row.also)}


def possible(rows: Mapping[str, Row]) -> list[str]:
    """The names of the options that can be set. A message suggests no others."""
    return [name for name, row in rows.items() if not row.impossible]


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message: `; did you mean …?`, the known names if they are few, or nothing."""
    candidates = sorted(known)
    lower = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    # A name's beginning or end alone is a common mistake, although few letters match.
    found = found or [one for one in lower if one.endswith(name.lower()) or one.startswith(name.lower())][:1]
    if found:
        return f"; did you mean {lower[found[0]]}?"
    return f"; known are {', '.join(candidates)}" if len(candidates) <= 12 else ""
