"""Finds constructs that llguidance's compiler takes too long for, because it cannot be interrupted."""

import math
import re
from decimal import Decimal
from typing import Any

from genai_server.errors import InvalidField
from genai_server.text.grammars.schema_joins import Joins

# Compile time is quadratic in the properties of an object: 0.15 s for this number, 4.5 s for 5000.
MAX_PROPERTIES = 1000
# For multiples of a number, the compiler follows each remainder, and all combinations if several apply to one number.
LARGEST_MULTIPLE = 10_000
_LONGEST_SHOWN = 10**30  # Python writes no number of thousands of digits
_MULTIPLE = re.compile(r'multipleOf\\*"\s*:\s*([^,}\s]*)')
_JOINED = re.compile(r'(allOf|\$ref)\\*"')


def check_cost(grammar: str, *, param: str) -> None:
    """Refuse constructs that would take forever to compile, anywhere in a schema, including schemas in Lark.

    Raises InvalidField.
    """
    if "%json" in grammar and "\\\\u" in grammar:
        raise InvalidField("the schemas in a grammar must be written without \\u", param=param)
    multiples = {_digits(number) for number in _MULTIPLE.findall(grammar)}
    together = math.prod(multiples) if _JOINED.search(grammar) else max(multiples, default=1)
    if together > LARGEST_MULTIPLE:
        raise InvalidField(
            f"multipleOf may be at most {LARGEST_MULTIPLE}, in total where schemas are combined; "
            f"given {together if together < _LONGEST_SHOWN else 'more'}",
            param=param,
        )


def check_schema(schema: Any, *, param: str) -> None:
    """Raise InvalidField if an object of a schema has too many properties, or combined schemas are too large."""
    try:
        Joins(schema, param=param)
    except RecursionError:
        raise InvalidField("the schema is nested too deeply") from None
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            given = value.get("properties")
            if isinstance(given, dict) and len(given) > MAX_PROPERTIES:
                raise InvalidField(
                    f"an object of a schema may have at most {MAX_PROPERTIES} properties; given {len(given)}",
                    param=param,
                )
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _digits(number: str) -> int:
    """The significant digits of a number: 25 for 0.0025 and 2500."""
    try:
        return int("".join(map(str, Decimal(number).as_tuple().digits)).strip("0") or "1")
    except (ArithmeticError, ValueError):
        return 1
