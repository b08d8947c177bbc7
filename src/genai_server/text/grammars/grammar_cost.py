"""What of a grammar takes llguidance's compiler too long, found before it begins: nothing can end it once it runs."""

import math
import re
from decimal import Decimal
from typing import Any

from genai_server.errors import InvalidField
from genai_server.text.grammars.schema_joins import Joins

# The compiler's time grows with the square of one object's properties: 0.15 s for so many, 4.5 s for 5000.
MOST_PROPERTIES = 1000
# To tell the multiples of a number it follows each remainder, and where several bind one number, of all together:
# nothing ends it before that is done.
LARGEST_MULTIPLE = 10_000
_LONGEST_SHOWN = 10**30  # Python writes no number of thousands of digits
_MULTIPLE = re.compile(r'multipleOf\\*"\s*:\s*([^,}\s]*)')
_JOINED = re.compile(r'(allOf|\$ref)\\*"')


def check_cost(grammar: str, *, param: str) -> None:
    """Refuse what the compiler would take for ever, wherever in a schema it stands, also in one within Lark.

    Raises InvalidField.
    """
    if "%json" in grammar and "\\\\u" in grammar:
        raise InvalidField("the schemas in a grammar must be written without \\u", param=param)
    multiples = {_digits(number) for number in _MULTIPLE.findall(grammar)}
    together = math.prod(multiples) if _JOINED.search(grammar) else max(multiples, default=1)
    if together > LARGEST_MULTIPLE:
        raise InvalidField(
            f"multipleOf may be at most {LARGEST_MULTIPLE}, that of all together where schemas are joined; "
            f"given {together if together < _LONGEST_SHOWN else 'more'}",
            param=param,
        )


def check_schema(schema: Any, *, param: str) -> None:
    """Raise InvalidField if an object of a JSON schema has too many properties, or what is joined is too much."""
    try:
        Joins(schema, param=param)
    except RecursionError:
        raise InvalidField("the schema is nested too deeply") from None
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            given = value.get("properties")
            if isinstance(given, dict) and len(given) > MOST_PROPERTIES:
                raise InvalidField(
                    f"an object of a schema may have at most {MOST_PROPERTIES} properties; given {len(given)}",
                    param=param,
                )
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _digits(number: str) -> int:
    """A number without sign, point and zeros around: 25 for 0.0025 and 2500."""
    try:
        return int("".join(map(str, Decimal(number).as_tuple().digits)).strip("0") or "1")
    except (ArithmeticError, ValueError):
        return 1
