"""The classes of which the tables of ONNX Runtime's options consist: a row for each option (`Row`), the kinds of values
that options have (`Kind`, `flag`, `number`, …), and suggestions for unknown names (`nearest`).
"""

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

Value = bool | int | float | str

_FLAGS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_SHAPE = r"[^:,\s]+:\d+(?:x\d+)*"
_SHAPES = re.compile(rf"{_SHAPE}(?:,{_SHAPE})*")
_ARENAS = re.compile(r"(cpu|gpu):\d+(;(cpu|gpu):\d+)*")
_TEXT = re.compile(".+", re.DOTALL)
_MAX_SIZE = 2**64 - 1


@dataclass(frozen=True)
class Kind:
    """A kind of value that an option of ONNX Runtime can have, such as a flag or a number: checks a configured value,
    and converts it to the text that the library takes.
    """

    # A phrase for messages that describes the valid values.
    expected: str
    # Converts a configured value to the text that the library takes. Raises ValueError for an invalid value.
    read: Callable[[Value], str]

    def text(self, value: Value) -> str:
        """Check a configured value, and return it as the text that ONNX Runtime or onnxruntime-genai takes.

        Raises ValueError for an invalid value; the message says which values are valid.
        """
        try:
            return self.read(value)
        except (ValueError, KeyError):
            raise ValueError(f"expected {self.expected}") from None


def flag(true: str = "1", false: str = "0") -> Kind:
    """Return the Kind of an option whose value is true or false. `true` and `false` are the texts that the library
    takes for these values.
    """
    return Kind("true or false (or 1 or 0)", lambda value: true if _FLAGS[str(value).lower()] else false)


def number(minimum: int = 0, maximum: int | None = None) -> Kind:
    """Return the Kind of an option whose value is a whole number from `minimum` to `maximum`, both included; with None
    as `maximum` there is no upper limit.
    """

    def read(value: Value) -> str:
        if isinstance(value, bool | float):
            raise ValueError
        parsed = int(value)
        if not minimum <= parsed <= (math.inf if maximum is None else maximum):
            raise ValueError
        return str(parsed)

    return Kind(f"a whole number from {minimum}" + ("" if maximum is None else f" to {maximum}"), read)


def size() -> Kind:
    """Return the Kind of an option whose value is a number of bytes, at most 2**64 - 1."""
    return Kind("a number of bytes below 2**64", number(0, _MAX_SIZE).read)


def choice(*names: str, also: Mapping[str, str] | None = None) -> Kind:
    """Return the Kind of an option whose value is one of `names`, in upper or lower case. `also` maps other accepted
    spellings to these names.
    """
    spellings = {name.lower(): name for name in names} | {key.lower(): name for key, name in (also or {}).items()}
    shown = ", ".join(names) + ("" if not also else f" (or {', '.join(also)})")
    return Kind(f"one of {shown}", lambda value: spellings[str(value).lower()])


def number_or_default(valid: Collection[str], default: str) -> Kind:
    """Return the Kind of an option whose value is a whole number, but only the numbers in `valid` have a meaning. Any
    other number becomes `default`, as in Triton.
    """
    read_number = number(-_MAX_SIZE, _MAX_SIZE).read
    return Kind("a whole number", lambda value: parsed if (parsed := read_number(value)) in valid else default)


def text() -> Kind:
    """Return the Kind of an option whose value is a text that is not empty."""
    return _pattern("a text", _TEXT)


def anything() -> Kind:
    """Return the Kind of an option whose value is not checked, because the values are not documented. A value is passed
    on as text, and true and false as 1 and 0.
    """

    def read(value: Value) -> str:
        if type(value) not in (bool, int, float, str) or value == "":
            raise ValueError
        return str(int(value)) if isinstance(value, bool) else str(value)

    return Kind("a single value, passed on as it is", read)


def shapes() -> Kind:
    """Return the Kind of an option whose value is a text with shapes of the graph's inputs, as TensorRT's optimization
    profiles have them: `input_ids:1x1,attention_mask:1x8`.
    """
    return _pattern('shapes such as "input_ids:1x1,attention_mask:1x8"', _SHAPES)


def arenas() -> Kind:
    """Return the Kind of an option whose value is a text that lists the devices whose memory arenas ONNX Runtime
    shrinks after each run, such as `cpu:0;gpu:0`.
    """
    return _pattern('devices such as "cpu:0" or "cpu:0;gpu:0"', _ARENAS)


def _pattern(expected: str, pattern: re.Pattern[str]) -> Kind:
    def read(value: Value) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError
        return value

    return Kind(expected, read)


class Reach(Enum):
    """The ways of running a model in which an option has an effect: with onnxruntime-genai (GENERATOR), in the engine's
    own ONNX Runtime sessions for a batch (BATCHED), or either way (BOTH).
    """

    BOTH = "both"
    GENERATOR = "generator"
    BATCHED = "batched"


@dataclass(frozen=True)
class Row:
    """One option of ONNX Runtime in a table of options: its names, the kind of its values, and in which ways of running
    a model it has an effect.
    """

    # ONNX Runtime's name.
    name: str
    kind: Kind
    reach: Reach = Reach.BOTH
    # Other names for the same option, such as Triton's.
    also: tuple[str, ...] = ()
    # For an option of Triton whose values mean something else here: the options for which each value stands.
    means: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Why the option cannot be set at all; "" if it can.
    impossible: str = ""
    # Why the option has an effect in one runner only, if the reason is not that the library lacks it.
    why: str = ""

    def options(self, text: str) -> Mapping[str, str]:
        """Return the options of ONNX Runtime, with their values by name, that this option of the configuration sets to
        `text`, a value that `kind` has converted to text. It is one option, except for options of Triton that stand for
        others.
        """
        return self.means[text] if self.means else {self.name: text}


def names(rows: Iterable[Row]) -> dict[str, Row]:
    """Return rows by the names of their options. A row whose option has several names is in the result under each of
    the names.
    """
    return {name: row for row in rows for name in (row.name, *row.also)}


def possible(rows: Mapping[str, Row]) -> list[str]:
    """Return the names of the options in a table that can be set, for suggestions in error messages."""
    return [name for name, row in rows.items() if not row.impossible]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message about the unknown name `name`: `; did you mean …?` with the most similar of
    the `known` names; if none is similar, a list of at most twelve names, or "" if there are more.
    """
    candidates = sorted(known)
    lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    # A name's beginning or end alone is a common mistake, although few letters match.
    matches = (
        matches
        or [spelling for spelling in lower if spelling.endswith(name.lower()) or spelling.startswith(name.lower())][:1]
    )
    if matches:
        return f"; did you mean {lower[matches[0]]}?"
    return f"; known are {', '.join(candidates)}" if len(candidates) <= 12 else ""
