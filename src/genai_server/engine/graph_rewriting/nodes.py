"""Helper that all modules for graph rewriting use."""

from collections.abc import Iterable
from typing import Any


def replace(field: Any, values: Iterable[Any]) -> None:
    """Replace all values of a repeated protobuf field."""
    values = list(values)
    del field[:]
    field.extend(values)
