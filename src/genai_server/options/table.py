"""Rows of the option tables, and how a name is found in them or the nearest one told."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from genai_server.options.values import Kind


class Reach(Enum):
    """Which of an engine's runners an option reaches: onnxruntime-genai's model, the batched session, or both."""

    BOTH = "both"
    GENERATOR = "generator"
    BATCHED = "batched"


@dataclass(frozen=True)
class Row:
    """An option under ONNX Runtime's `name`.

    `also` are other names for the same, such as Triton's. `means` gives for a Triton name that is not plainly another
    name the options that each of its values stands for. `impossible` says why the option cannot be set at all.
    """

    name: str
    kind: Kind
    reach: Reach = Reach.BOTH
    also: tuple[str, ...] = ()
    means: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    impossible: str = ""

    def options(self, text: str) -> Mapping[str, str]:
        """ONNX Runtime's options, by name, that a checked value stands for."""
        return self.means[text] if self.means else {self.name: text}


def names(rows: Iterable[Row]) -> dict[str, Row]:
    """The rows by each of their names."""
    return {name: row for row in rows for name in (row.name, *row.also)}


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a refusal: `; did you mean …?`, or the known names if they are few, or nothing."""
    candidates = sorted(known)
    lower = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    # Another name's end or beginning is a likelier mistake than its letters tell.
    found = found or [one for one in lower if one.endswith(name.lower()) or one.startswith(name.lower())][:1]
    if found:
        return f"; did you mean {lower[found[0]]}?"
    return f"; known are {', '.join(candidates)}" if len(candidates) <= 12 else ""
