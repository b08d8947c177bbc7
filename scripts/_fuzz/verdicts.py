"""Whether an answer fits its schema, by jsonschema-rs and Python's own library, which have nothing to do with the
server.
"""

from __future__ import annotations

import datetime
import functools
import ipaddress
import json
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import jsonschema_rs


class Unjudged(Exception):
    """No validator here can decide."""


def _is_time(text: str) -> None:
    datetime.time.fromisoformat(text.upper().replace("Z", "+00:00"))


# They raise ValueError for invalid values.
_BY_PYTHON: dict[str, Callable[[str], object]] = {
    "date": datetime.date.fromisoformat,
    "date-time": lambda text: datetime.datetime.fromisoformat(text.upper()),
    "time": _is_time,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
}


@functools.cache
def _only(format: str) -> Any:
    return jsonschema_rs.Draft202012Validator({"format": format}, validate_formats=True)


def _is_formatted(format: str, text: str) -> bool:
    """Whether both libraries take a text for a value of this format."""
    try:
        _BY_PYTHON[format](text)
    except ValueError:
        return False
    return bool(_only(format).is_valid(text))


_FORMATS: dict[str, Callable[..., bool]] = {format: functools.partial(_is_formatted, format) for format in _BY_PYTHON}


def _exact(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise Unjudged("an exponent that no library reads") from None
    if abs(value.adjusted()) > 5_000:
        raise Unjudged("an exponent that takes too long")
    return value


def complaint(schema: dict[str, Any], answer: bytes) -> str | None:
    """What is wrong with an answer, by exact numbers; None if nothing is. Raises Unjudged."""
    try:
        value = json.loads(answer.decode(), parse_float=_exact)
    except ValueError as error:
        return f"no JSON: {error}"
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    try:
        validator = jsonschema_rs.validator_for(exact, validate_formats=True, formats=_FORMATS)
    except ValueError as error:  # a pattern that it does not read
        raise Unjudged(str(error)) from None
    found = next(validator.iter_errors(value), None)
    return f"{found.message} (by {'/'.join(map(str, found.schema_path))})"[:500] if found else None
