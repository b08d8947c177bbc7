"""Refuses JSON schemas and grammars that would take too long to compile, because the compiler of llguidance, the
library that enforces grammars, cannot be interrupted.

The limits concern the properties of an object, `multipleOf`, and schemas that `allOf` and `$ref` combine.
"""

import math
import re
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from genai_server.errors import AsIs, InvalidField, quoted

# Compile time is quadratic in the properties of an object: 0.15 s for this number, 4.5 s for 5000.
MAX_PROPERTIES = 1000
# For multiples of a number, the compiler follows each remainder, and all combinations if several apply to one number.
LARGEST_MULTIPLE = 10_000
# Compiling sixteen combined patterns takes 0.05 s, twenty 2.3 s and twenty-four far too long.
MAX_PATTERNS = 16
# Combined schemas, counted each time they are referred to: 20,000 take 0.07 s.
MAX_JOINED = 20_000
# Length of a chain of references; each one adds a few nested calls here.
_DEEPEST = 100
# Keywords next to a reference that do not add constraints to it.
_WORDS = {"$ref", "$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default", "examples"}
_PATTERNS = ("pattern", "format", "patternProperties")
_LONGEST_SHOWN = 10**30  # Python writes no number of thousands of digits
_MULTIPLE = re.compile(r'multipleOf\\*"\s*:\s*([^,}\s]*)')
_JOINED = re.compile(r'(allOf|\$ref)\\*"')


def check_cost(grammar: str, *, param: str) -> None:
    """Check the `multipleOf` values in the JSON text of a grammar, including those of schemas within its Lark rules.

    Raises InvalidField, naming the field `param`, if they take too long to compile.
    """
    if "%json" in grammar and "\\\\u" in grammar:
        raise InvalidField(param, "must have its schemas written without \\u")
    multiples = {_digits(number) for number in _MULTIPLE.findall(grammar)}
    together = math.prod(multiples) if _JOINED.search(grammar) else max(multiples, default=1)
    if together > LARGEST_MULTIPLE:
        raise InvalidField(
            param,
            "cannot be used: multipleOf may be, in total where schemas are combined, at most",
            limit=LARGEST_MULTIPLE,
            given=together if together < _LONGEST_SHOWN else AsIs("more"),
        )


def check_schema(schema: Any, *, param: str) -> None:
    """Check the size of the JSON schema `schema` before it is compiled.

    Raises InvalidField, naming the field `param`, if an object has too many properties, if schemas that `allOf` and
    `$ref` combine are too large, or if the schema is nested too deeply.
    """
    try:
        _Joins(schema, param=param)
    except RecursionError:
        raise InvalidField(None, "the schema is nested too deeply") from None
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            properties = value.get("properties")
            if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
                raise InvalidField(
                    param,
                    "cannot be used: an object of a schema may have at most",
                    limit=f"{MAX_PROPERTIES} properties",
                    given=len(properties),
                )
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _digits(number: str) -> int:
    """Return the significant digits of a decimal number as an integer: 25 for "0.0025" and "2500"; 1 for what is no
    number.
    """
    try:
        return int("".join(map(str, Decimal(number).as_tuple().digits)).strip("0") or "1")
    except (ArithmeticError, ValueError):
        return 1


class _Joins:
    """Checks the sizes of schemas that `allOf` and `$ref` combine, because the compiler processes each combination
    anew.

    The constructor does the whole check. It raises InvalidField, naming the field `param`, if too many schemas or
    patterns are combined, or if a reference cannot be followed.
    """

    def __init__(self, schema: Any, *, param: str) -> None:
        self._schema = schema
        self._param = param
        self._found: dict[str, tuple[int, frozenset[str]]] = {}
        self._open: list[str] = []
        self._visit(schema)

    def _visit(self, value: Any) -> tuple[int, frozenset[str]]:
        """Return the number of schemas within `value`, a part of the schema, and the set of patterns and formats in
        them.

        Schemas that references lead to are included. Raises InvalidField if a combination within the value is too
        large.
        """
        number, patterns = 0, frozenset[str]()
        if isinstance(value, dict):
            number = 1
            patterns = frozenset(f"{key}: {value[key]}" for key in _PATTERNS if key in value)
            inner = [item for key, item in value.items() if key not in ("$defs", "definitions", "enum", "const")]
            if isinstance(value.get("$ref"), str):
                more, more_patterns = self._follow(value["$ref"])
                number, patterns = min(number + more, MAX_JOINED + 1), patterns | more_patterns
        else:
            inner = value if isinstance(value, list) else []
        for item in inner:
            if isinstance(item, dict | list):
                more, more_patterns = self._visit(item)
                number, patterns = min(number + more, MAX_JOINED + 1), patterns | more_patterns
        if isinstance(value, dict) and ("allOf" in value or ("$ref" in value and value.keys() - _WORDS)):
            self._check(number, patterns)
        return number, patterns

    def _check(self, number: int, patterns: frozenset[str]) -> None:
        if number > MAX_JOINED:
            raise self._refusal(f"at most {MAX_JOINED} schemas, each counted wherever it is referred to; given more")
        if len(patterns) > MAX_PATTERNS:
            raise self._refusal(f"at most {MAX_PATTERNS} with a pattern or format; given {len(patterns)}")

    def _follow(self, reference: str) -> tuple[int, frozenset[str]]:
        if reference in self._found:
            return self._found[reference]
        if reference in self._open:  # it holds itself
            return 0, frozenset()
        if len(self._open) >= _DEEPEST:
            raise InvalidField(
                self._param, f"cannot be used: references ($ref) may lead to others {_DEEPEST} deep; given more"
            )
        self._open.append(reference)
        cost = self._found[reference] = self._visit(self._target(reference))
        self._open.pop()
        return cost

    def _target(self, reference: str) -> Any:
        try:
            return target(self._schema, reference)
        except InvalidField as error:
            raise error.at(self._param) from None

    def _refusal(self, details: str) -> InvalidField:
        return InvalidField(self._param, f"cannot be used: allOf and $ref of a schema may combine {details}")


def target(schema: Any, reference: str) -> Any:
    """Return the part of the JSON schema `schema` that the local reference `reference`, such as `#/$defs/NAME`, leads
    to.

    Raises InvalidField, to which the caller adds the field's name, if the reference is not local or leads to nothing.
    The compiler would support other references, but their targets could not be checked.
    """
    value = schema
    try:
        document, _, path = reference.partition("#")
        if document or (path and not path.startswith("/")):
            raise KeyError
        for part in unquote(path).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (KeyError, ValueError, IndexError, TypeError):
        raise InvalidField(
            None, f"{quoted(reference)} is not a reference to a part of the schema, such as '#/$defs/NAME'"
        ) from None
    return value
