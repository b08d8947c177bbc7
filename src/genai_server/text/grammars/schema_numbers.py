"""Checks and rewrites the numbers in a JSON schema for llguidance, the library that enforces grammars. It stores
numbers as doubles, and integers in 64 bits.

A number that llguidance would store with another value is refused with InvalidField. A bound such as `minimum` outside
of the range that llguidance can enforce is moved to the end of that range: every value within still matches the schema.
"""

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from genai_server.errors import AsIs, InvalidField

# The bounds of an integer: the least double that it takes, and the largest integer of 64 bits, to which it rounds down.
MIN_INTEGER, MAX_INTEGER = -(2**63) + 1024, 2**63 - 1
# The bounds of other numbers: beyond, one of the two alone cannot be followed.
LARGEST_NUMBER = 10**18
# The smallest number above 0, for schemas that exclude 0.
_MIN_ABOVE_ZERO = 1e-30
# Beyond this, not every integer is a double.
_EXACT = 2**53
_MAX_DIGITS, _MAX_PLACES = 2**32, 9
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")

Number = int | float


def with_exact_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema whose bounds (`minimum`, `exclusiveMaximum` and so on) llguidance enforces exactly.

    Raises InvalidField, to which the caller adds the field's name, for a bound for which this is impossible.
    """
    kinds = schema.get("type", "number")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    bounds = {key: schema[key] for key in BOUNDS if is_number(schema.get(key))}
    for key, other in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(key) is True and other in bounds:  # as draft 4 has it
            bounds[key] = bounds[other]
    if not bounds or not {"number", "integer"} & {kind for kind in kinds if isinstance(kind, str)}:
        return dict(schema)
    exact_bounds = _of_numbers(bounds) if "number" in kinds else _of_integers(bounds)
    if {"number", "integer"} <= set(map(str, kinds)):  # the compiler panics at some numbers that are meant twice
        exact_bounds["type"] = [kind for kind in kinds if kind != "integer"]
    return {key: value for key, value in schema.items() if key not in bounds} | exact_bounds


def with_bounded_integers(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema with a `type` in which integers are limited to 64 bits, unless they are limited
    already.

    Otherwise a model that repeats itself could write digits without end.
    """
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    is_bounded = not {*BOUNDS, "enum", "const", "multipleOf"}.isdisjoint(schema)
    if "integer" not in kinds or "number" in kinds or is_bounded:
        return dict(schema)
    return {**schema, "minimum": MIN_INTEGER, "maximum": MAX_INTEGER}


def check_value(value: Any, key: str) -> None:
    """Check the numbers in a value of the keyword `key`, which is "enum" or "const".

    Raises InvalidField, to which the caller adds the field's name, for a number that llguidance would store with
    another value.
    """
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_value(inner, key)
    if is_number(value) and not (value == MAX_INTEGER or (_is_exact_double(value) and abs(value) < MAX_INTEGER)):
        raise InvalidField(
            None, f"numbers in {key} must be exact as doubles and at most", limit=MAX_INTEGER, given=_shown(value)
        )


def multiple(value: Any) -> tuple[int, int] | None:
    """Return the value of the keyword `multipleOf` as its digits and its number of decimal places: (25, 2) for 0.25.

    None if the value is no number. Raises InvalidField if llguidance cannot represent it exactly.
    """
    if not is_number(value):
        return None
    is_held = _is_exact_double(value)
    scaled, places = abs(float(value)) if is_held else 0.0, 0
    while scaled % 1 and places <= _MAX_PLACES:
        scaled, places = scaled * 10, places + 1
    is_exact = Decimal(int(scaled)).scaleb(-places) == abs(_meant(value))
    if not is_held or not is_exact or places > _MAX_PLACES or scaled >= _MAX_DIGITS:
        raise InvalidField(
            None,
            f"multipleOf must be below {_MAX_DIGITS}, without its point, too, and have at most {_MAX_PLACES} "
            "decimal places, which stay as many when its double is multiplied by 10",
            given=_shown(value),
        )
    return int(scaled), places


def check_together(multiples: set[tuple[int, int]]) -> None:
    """Check that several `multipleOf` values may apply to one number: their product must not be too large for
    llguidance.

    Each value is given as its digits and its number of decimal places: (25, 2) for 0.25. Raises InvalidField, to which
    the caller adds the field's name.
    """
    max_places = max((places for _, places in multiples), default=0)
    if (
        len(multiples) > 1
        and math.prod(digits * 10 ** (max_places - places) for digits, places in multiples) >= _MAX_DIGITS
    ):
        shown = ", ".join(str(Decimal(digits).scaleb(-places)) for digits, places in sorted(multiples))
        raise InvalidField(
            None,
            "the product of all multipleOf, without decimal places, must be below",
            limit=f"{_MAX_DIGITS} where schemas are joined",
            given=shown,
        )


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number (and not a boolean)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_integers(bounds: Mapping[str, Number]) -> dict[str, Any]:
    exact_bounds: dict[str, Any] = {}
    low = {"minimum": math.ceil, "exclusiveMinimum": lambda value: math.floor(value) + 1}
    if limits := {key: low[key](_meant(_finite(key, bounds[key]))) for key in low if key in bounds}:
        key = max(limits, key=lambda key: limits[key])
        if limits[key] > MAX_INTEGER:
            raise _refused(key, f"at most {MAX_INTEGER} for integers", bounds[key])
        exact_bounds["minimum"] = _integer(key, max(limits[key], MIN_INTEGER), bounds[key])
    high = {"maximum": math.floor, "exclusiveMaximum": lambda value: math.ceil(value) - 1}
    if limits := {key: high[key](_meant(_finite(key, bounds[key]))) for key in high if key in bounds}:
        key = min(limits, key=lambda key: limits[key])
        if limits[key] < MIN_INTEGER:
            raise _refused(key, f"at least {MIN_INTEGER} for integers", bounds[key])
        exact_bounds["maximum"] = _integer(key, min(limits[key], MAX_INTEGER), bounds[key])
    return exact_bounds


def _integer(key: str, bound: int, value: Number) -> int:
    if bound != MAX_INTEGER and int(float(bound)) != bound:
        raise _refused(key, f"between -{_EXACT} and {_EXACT}, or exact as a double", value)
    return bound


def _of_numbers(bounds: Mapping[str, Number]) -> dict[str, Any]:
    exact_bounds: dict[str, Any] = {}
    if low := [_bound(key, bounds[key], math.inf) for key in BOUNDS[:2] if key in bounds]:
        value, is_out = max(*low, (-LARGEST_NUMBER, False))
        exact_bounds["exclusiveMinimum" if is_out else "minimum"] = value
    if high := [_bound(key, bounds[key], -math.inf) for key in BOUNDS[2:] if key in bounds]:
        value, is_in = min((value, not is_out) for value, is_out in [*high, (LARGEST_NUMBER, False)])
        exact_bounds["maximum" if is_in else "exclusiveMaximum"] = value
    return exact_bounds


def _bound(key: str, value: Number, towards: float) -> tuple[Number, bool]:
    """Return a bound of a number that llguidance enforces exactly, and whether the bound itself is excluded.

    `key` is the keyword, such as "exclusiveMinimum", and `value` its value. `towards` is plus infinity for a minimum
    and minus infinity for a maximum. An excluded minimum of 0 or more, or maximum of 0 or less, becomes the next number
    as an included bound, because llguidance would allow an excluded bound if the other bound is less than 1 away.
    Raises InvalidField, to which the caller adds the field's name, for a bound that cannot be enforced exactly.
    """
    within = 1 if towards > 0 else -1
    if _finite(key, value) * within >= LARGEST_NUMBER:
        raise _refused(key, f"below {LARGEST_NUMBER}, on either side of 0,", value)
    if abs(value) > LARGEST_NUMBER:
        return value, False
    is_out = key.startswith("exclusive")
    if isinstance(value, float) and not _is_parsed_exactly(value):
        return _next(value, towards), False
    if not _is_exact_double(value):
        raise _refused(key, f"between -{_EXACT} and {_EXACT}, or exact as a double", value)
    if is_out and (value * within >= 0 or abs(value) >= _EXACT):
        return within * _MIN_ABOVE_ZERO if value == 0 else _next(float(value), towards), False
    return value, is_out


def _next(value: float, towards: float) -> float:
    """Return the next double after `value`, in the direction of `towards`, that llguidance's compiler reads exactly."""
    while True:
        value = math.nextafter(value, towards)
        if _is_parsed_exactly(value):
            return value


def _is_parsed_exactly(value: float) -> bool:
    """Whether llguidance's compiler reads the shortest text of a double as this same double, and writes it as the same
    text.

    Rust's serde_json reads numbers fast and rounds more than once. Where two shortest texts are equally near a double,
    Rust may choose another one than Python.
    """
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    parsed, power = float(int("".join(map(str, digits)))), exponent
    while power < -308:
        parsed, power = parsed / 1e308, power + 308
    parsed = parsed / float(f"1e{-power}") if power < 0 else parsed * float(f"1e{power}")
    off = abs(Fraction(value) - Fraction(_meant(value)))
    return parsed == abs(value) and off * 2 != Fraction(10) ** exponent


def _finite(key: str, value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(key, "a number", value)
    return value


def _meant(value: Number) -> Decimal:
    """Return the decimal value that a number has in its JSON text, without the rounding error of a float: 0.1 is
    exactly 0.1.
    """
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def _is_exact_double(value: Number) -> bool:
    """Whether llguidance stores a number unchanged, although it stores doubles.

    This is so if the nearest double equals the number, and if the double's shortest notation has the same value.
    """
    if isinstance(value, float) and (not math.isfinite(value) or not _is_parsed_exactly(value)):
        return False
    if abs(value) < _EXACT:
        return True
    try:
        double = float(value)
    except OverflowError:
        return False
    return Fraction(double) == Fraction(_meant(value)) == Fraction(Decimal(repr(double)))


def _refused(key: str, rule: str, value: Number) -> InvalidField:
    return InvalidField(None, f"{key} must be {rule}", given=_shown(value))


def _shown(value: Number) -> AsIs:
    """Return the text of a number for an error message, truncated because a number may have thousands of digits."""
    try:
        text = str(value)
    except ValueError:  # Python writes no longer ones
        text = hex(value)  # type: ignore[arg-type]
    return AsIs(text if len(text) <= 60 else f"{text[:50]}… ({len(text)} characters)")
