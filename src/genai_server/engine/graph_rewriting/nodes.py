"""What rewriting a graph needs everywhere."""

from collections.abc import Iterable
from typing import Any


def replace(field: Any, values: Iterable[Any]) -> None:
    """Replace the values of a repeated field."""
    values = list(values)
    del field[:]
    field.extend(values)
