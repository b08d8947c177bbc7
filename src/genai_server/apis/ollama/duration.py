"""Durations in Go's format, such as `1h30m` (https://pkg.go.dev/time#ParseDuration)."""

import math
import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[+-]?(0|({_PART})+)")


def seconds(given: float | str) -> float:
    """Convert a number or duration text to seconds; negative ones are infinite. Raises ValueError."""
    if isinstance(given, str):
        if not _DURATION.fullmatch(given):
            raise ValueError('must be a number of seconds or a duration such as "5m"')
        parts = re.findall(_PART, given)
        found = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        given = -found if given.startswith("-") else found
    return math.inf if given < 0 else given


def nanoseconds(seconds: float) -> int:
    """Convert seconds to Ollama's durations: at least 1, because clients divide by them."""
    return max(1, round(seconds * 1e9))
