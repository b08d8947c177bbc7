"""Resource limits of a template: time, characters of values, widths, bits of numbers."""

import re
import time
from collections.abc import ItemsView, Iterable, KeysView, ValuesView
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

# Processor time, which does not depend on the machine's load.
MAX_SECONDS = 1.0
_MAX_WIDTH = 1000
_MAX_SORTED = 100_000
_MAX_BITS = 4096
# Values measured between two checks of the time, which takes about a millisecond.
_UNTIMED = 1000
_WIDE = re.compile(r"[0-9]{4,}|\*")


class TooCostly(TemplateError):
    """A template exceeds a limit."""


class Meter:
    """The remaining resources of one rendering."""

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self._end = time.thread_time() + MAX_SECONDS

    def tick(self) -> None:
        """Check the time."""
        if time.thread_time() > self._end:
            raise TooCostly(f"it takes more than {MAX_SECONDS:g} s")

    def weigh(self, *values: Any) -> int:
        """Estimate how many characters the values have as text. A value that occurs twice counts twice.

        Values that hold many others take long to weigh, so the time is checked on the way.
        """
        weight = seen = 0
        waiting: list[Iterable[Any]] = [values]
        while waiting:
            for value in waiting.pop():
                seen += 1
                if seen % _UNTIMED == 0:
                    self.tick()
                outside, inside = _sides(value)
                weight += outside
                if weight > self.characters:
                    raise TooCostly(f"it creates a value of more than {self.characters} characters")
                waiting += inside
        return weight

    def check(self, size: int, growth: int = 1) -> None:
        """Check that the result of an operation, or its upper bound, is not too large."""
        if size > self.characters * growth:
            raise TooCostly(f"it creates a value of more than {self.characters} characters")


def check_widths(values: Iterable[Any]) -> None:
    """Check that no value requests a text that is too wide."""
    for value in values:
        inner = value if isinstance(value, tuple | list) else (value,)
        for one in inner:
            if (isinstance(one, int) and abs(one) > _MAX_WIDTH) or (isinstance(one, str) and _WIDE.search(one)):
                raise TooCostly(f"it writes a text with a width of more than {_MAX_WIDTH}")


def check_count(values: Iterable[Any]) -> None:
    """Check that no long list is sorted."""
    if any(len(value) > _MAX_SORTED for value in values if hasattr(value, "__len__")):
        raise TooCostly(f"it sorts more than {_MAX_SORTED} values")


def check_bits(left: Any, right: Any, *, is_power: bool) -> None:
    """Check that the number of bits of a result is within the limit."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if is_power else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise TooCostly(f"it creates a number of more than {_MAX_BITS} bits")


def _sides(value: Any) -> tuple[int, tuple[Iterable[Any], ...]]:
    """The size of a value without its elements, and its elements."""
    if isinstance(value, str | bytes):
        return len(value), ()
    if isinstance(value, int):
        return value.bit_length() >> 2, ()
    if isinstance(value, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
        return len(value), (value,)
    if isinstance(value, Namespace):
        value = value._Namespace__attrs
    if isinstance(value, dict):
        return len(value), (value, value.values())
    return (len(value) if isinstance(value, range) else 1), ()
