"""Whether an answer fits its schema, by jsonschema-rs and Python's own library, which have nothing to do with the
server.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import jsonschema_rs


class Unjudged(Exception):
    """No validator here can decide."""


def _read_by(read: Callable[[str], object]) -> Callable[[str], bool]:
    def is_formatted(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return is_formatted


_BY_PYTHON = {
    "date": _read_by(datetime.date.fromisoformat),
    "date-time": _read_by(lambda text: datetime.datetime.fromisoformat(text.upper())),
    "time": _read_by(lambda text: datetime.time.fromisoformat(text.upper().replace("Z", "+00:00"))),
    "ipv4": _read_by(ipaddress.IPv4Address),
    "ipv6": _read_by(ipaddress.IPv6Address),
    "uuid": _read_by(uuid.UUID),
}


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
    for formats in ({}, _BY_PYTHON):  # a value must have its format by both libraries
        try:
            validator = jsonschema_rs.validator_for(exact, validate_formats=True, formats=formats)
        except ValueError as error:  # a pattern that it does not read
            raise Unjudged(str(error)) from None
        if (found := next(validator.iter_errors(value), None)) is not None:
            return f"{found.message} (by {'/'.join(map(str, found.schema_path))})"[:500]
    return None
