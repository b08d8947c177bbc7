"""Limits combined schemas: each combination is compiled anew, and combined patterns may take forever."""

from typing import Any
from urllib.parse import unquote

from genai_server.errors import InvalidField
from genai_server.quoted_values import quoted

# Compiling sixteen combined patterns takes 0.05 s, twenty 2.3 s and twenty-four far too long.
MAX_PATTERNS = 16
# Combined schemas, counted each time they are referred to: 20,000 take 0.07 s.
MAX_JOINED = 20_000
# Length of a chain of references; each one adds a few nested calls here.
_DEEPEST = 100
# Keywords next to a reference that do not add constraints to it.
_WORDS = {"$ref", "$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default", "examples"}
_PATTERNS = ("pattern", "format", "patternProperties")


class Joins:
    """Checks one schema. Raises InvalidField, naming `param`."""

    def __init__(self, schema: Any, *, param: str) -> None:
        self._schema = schema
        self._param = param
        self._found: dict[str, tuple[int, frozenset[str]]] = {}
        self._open: list[str] = []
        self._look(schema)

    def _look(self, value: Any) -> tuple[int, frozenset[str]]:
        """The number of schemas in a value and its patterns, following references."""
        number, patterns = 0, frozenset[str]()
        if isinstance(value, dict):
            number = 1
            patterns = frozenset(f"{key}: {value[key]}" for key in _PATTERNS if key in value)
            inner = [item for key, item in value.items() if key not in ("$defs", "definitions", "enum", "const")]
            if isinstance(value.get("$ref"), str):
                more, others = self._follow(value["$ref"])
                number, patterns = min(number + more, MAX_JOINED + 1), patterns | others
        else:
            inner = value if isinstance(value, list) else []
        for item in inner:
            if isinstance(item, dict | list):
                more, others = self._look(item)
                number, patterns = min(number + more, MAX_JOINED + 1), patterns | others
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
                f"{self._param}: references ($ref) may lead to others {_DEEPEST} deep; given more", param=self._param
            )
        self._open.append(reference)
        found = self._found[reference] = self._look(self._target(reference))
        self._open.pop()
        return found

    def _target(self, reference: str) -> Any:
        try:
            return target(self._schema, reference)
        except InvalidField as error:
            raise InvalidField(f"{self._param}: {error.message}", param=self._param) from None

    def _refusal(self, what: str) -> InvalidField:
        return InvalidField(f"{self._param}: allOf and $ref of a schema may combine {what}", param=self._param)


def target(schema: Any, reference: str) -> Any:
    """The target of a local reference. The compiler supports others, which could hide their targets.

    Raises InvalidField, which names no field of the request.
    """
    value = schema
    try:
        whole, _, path = reference.partition("#")
        if whole or (path and not path.startswith("/")):
            raise KeyError
        for part in unquote(path).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (KeyError, ValueError, IndexError, TypeError):
        raise InvalidField(
            f"{quoted(reference)} is not a reference to a part of the schema, such as '#/$defs/NAME'"
        ) from None
    return value
