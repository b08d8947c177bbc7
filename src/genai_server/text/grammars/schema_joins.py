"""What a JSON schema joins into one: each join is compiled anew, and patterns that are joined may take for ever."""

from typing import Any
from urllib.parse import unquote

from genai_server.errors import InvalidField
from genai_server.quoted_values import quoted

# Sixteen patterns that are joined take the compiler 0.05 s, twenty 2.3 s and twenty-four more than anybody waits.
MOST_PATTERNS = 16
# Schemas that become one, each counted as often as it is referred to: 20,000 take 0.07 s.
MOST_JOINED = 20_000
# References that lead to references; each is a few calls of the functions here.
_DEEPEST = 100
# What stands beside a reference and joins nothing to it.
_WORDS = {"$ref", "$defs", "definitions", "$schema", "$id", "$comment", "title", "description", "default", "examples"}
_PATTERNS = ("pattern", "format", "patternProperties")


class Joins:
    """Looks through one schema. Raises InvalidField, naming `param`."""

    def __init__(self, schema: Any, *, param: str) -> None:
        self._schema = schema
        self._param = param
        self._found: dict[str, tuple[int, frozenset[str]]] = {}
        self._open: list[str] = []
        self._look(schema)

    def _look(self, value: Any) -> tuple[int, frozenset[str]]:
        """How many schemas a value holds, and which patterns, with what it refers to."""
        number, patterns = 0, frozenset[str]()
        if isinstance(value, dict):
            number = 1
            patterns = frozenset(f"{key}: {value[key]}" for key in _PATTERNS if key in value)
            inner = [item for key, item in value.items() if key not in ("$defs", "definitions", "enum", "const")]
            if isinstance(value.get("$ref"), str):
                more, others = self._follow(value["$ref"])
                number, patterns = min(number + more, MOST_JOINED + 1), patterns | others
        else:
            inner = value if isinstance(value, list) else []
        for item in inner:
            if isinstance(item, dict | list):
                more, others = self._look(item)
                number, patterns = min(number + more, MOST_JOINED + 1), patterns | others
        if isinstance(value, dict) and ("allOf" in value or ("$ref" in value and value.keys() - _WORDS)):
            self._check(number, patterns)
        return number, patterns

    def _check(self, number: int, patterns: frozenset[str]) -> None:
        if number > MOST_JOINED:
            raise self._refusal(f"at most {MOST_JOINED} schemas, each counted wherever it is referred to; given more")
        if len(patterns) > MOST_PATTERNS:
            raise self._refusal(f"at most {MOST_PATTERNS} with a pattern or format; given {len(patterns)}")

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
        return InvalidField(f"{self._param}: what allOf and $ref join in a schema may be {what}", param=self._param)


def target(schema: Any, reference: str) -> Any:
    """What a reference within a schema means; the compiler knows others, which could hide what they lead to.

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
            f"{quoted(reference)} is no reference to a part of the schema, such as '#/$defs/NAME'"
        ) from None
    return value
