"""Whether an answer fits its schema, by validators that have nothing to do with the server.

jsonschema does it on exact numbers; formats are for jsonschema-rs and Python's own library to judge, and patterns for
Node, where it is installed, else for Python.
"""

from __future__ import annotations

import datetime
import functools
import ipaddress
import json
import re
import select
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import jsonschema
import jsonschema_rs
from jsonschema import ValidationError
from jsonschema.validators import extend, validator_for

# Node tries all ways to match, which may take too long.
_MAX_SECONDS = 5.0
_SEARCH = r"""
require('readline').createInterface({input: process.stdin}).on('line', line => {
  const [pattern, text] = JSON.parse(line);
  let found = null;
  const onlyUnicode = /\\[Aza]|\(\?P?<|\\u[dD{]|\\[pP]/.test(pattern) || /[\ud800-\udfff]/.test(pattern + text);
  const flags = onlyUnicode ? ['u'] : ['u', ''];
  for (const flag of flags) try { found = new RegExp(pattern, flag).test(text); break; } catch {}
  console.log(JSON.stringify(found));
});
"""


class Unjudged(Exception):
    """No validator here can decide."""


class Patterns:
    """Whether a pattern is found in a text."""

    def __init__(self) -> None:
        self._node = shutil.which("node")
        self._process: subprocess.Popen[bytes] | None = None

    def found(self, pattern: str, text: str) -> bool:
        """Raises Unjudged if this is no pattern, or takes too long."""
        if self._node is None:
            try:
                return re.search(pattern, text) is not None
            except re.error:
                raise Unjudged(pattern) from None
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen([self._node, "-e", _SEARCH], stdin=pipe, stdout=pipe)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([pattern, text]).encode() + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], _MAX_SECONDS)[0]:
            process.kill()
            process.wait()
            self._process = None
            raise Unjudged(pattern)
        answer = json.loads(process.stdout.readline())
        if answer is None:
            raise Unjudged(pattern)
        return bool(answer)


def _exact(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise Unjudged("an exponent that no library reads") from None
    if abs(value.adjusted()) > 5_000:
        raise Unjudged("an exponent that takes too long")
    return value


def _is_number(_: Any, value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _is_whole(checker: Any, value: Any) -> bool:
    return _is_number(checker, value) and value == Decimal(value).to_integral_value()


def _multiple(validator: Any, of: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "number") and of and Fraction(value) % Fraction(of):
        yield ValidationError(f"{value} is no multiple of {of}")


def _is_time(text: str) -> bool:
    datetime.time.fromisoformat(text.upper().replace("Z", "+00:00"))
    return True


# They also raise ValueError for invalid values.
_BY_PYTHON: dict[str, Callable[[str], object]] = {
    "date": datetime.date.fromisoformat,
    "date-time": lambda text: datetime.datetime.fromisoformat(text.upper()),
    "time": _is_time,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
}


@functools.cache
def _format(name: str) -> Any:
    return jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True)


def _formatted(validator: Any, name: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(value, str):
        return
    try:
        _BY_PYTHON.get(name, str)(value)
    except ValueError as error:
        yield ValidationError(f"{value!r} is no {name}: {error}")
    if not _format(name).is_valid(value):
        yield ValidationError(f"{value!r} is no {name}")


class Judge:
    """Validates answers."""

    def __init__(self) -> None:
        self._patterns = Patterns()
        self._kinds: dict[type, Any] = {}

    def complaint(self, schema: dict[str, Any], answer: bytes) -> str | None:
        """What is wrong with an answer, None if nothing is. Raises Unjudged."""
        try:
            value = json.loads(answer.decode(), parse_float=_exact)
        except ValueError as error:
            return f"no JSON: {error}"
        schema = json.loads(json.dumps(schema), parse_float=Decimal)
        try:
            found = next(self._validator(schema).iter_errors(value), None)
        except RecursionError:
            raise Unjudged("nested too deeply") from None
        return f"{found.message} (by {found.validator}: {found.validator_value})"[:500] if found else None

    def _validator(self, schema: Any) -> Any:
        base = validator_for(schema, default=jsonschema.Draft202012Validator)
        if base not in self._kinds:
            checker = base.TYPE_CHECKER.redefine_many({"number": _is_number, "integer": _is_whole})
            words = {
                "multipleOf": _multiple,
                "format": _formatted,
                "pattern": self._pattern,
                "patternProperties": self._pattern_properties,
                "additionalProperties": self._additional,
            }
            self._kinds[base] = extend(base, words, type_checker=checker)
        return self._kinds[base](schema)

    def _pattern(self, validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and not self._patterns.found(pattern, value):
            yield ValidationError(f"{value!r} does not match {pattern!r}")

    def _pattern_properties(self, validator: Any, given: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            for pattern, inner in given.items():
                for key, item in value.items():
                    if self._patterns.found(pattern, key):
                        yield from validator.descend(item, inner, path=key, schema_path=pattern)

    def _additional(self, validator: Any, inner: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, dict):
            for key, item in value.items():
                named = key in schema.get("properties", ())
                if not named and not any(self._patterns.found(one, key) for one in schema.get("patternProperties", ())):
                    yield from validator.descend(item, inner, path=key)
