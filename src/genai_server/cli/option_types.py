"""Types for numbers and paths in command-line options, for argparse."""

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path


def path_of(text: str) -> Path:
    """Return a path from the command line, with ~ expanded to the user's home. ~ of an unknown user stays
    unchanged.
    """
    return Path(os.path.expanduser(text))


def positive(text: str) -> int:
    """Return an option's value as an integer of at least 1. Raises ArgumentTypeError for other values."""
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")


def number_from(low: float, high: float = inf) -> Callable[[str], float]:
    """Return an argparse type for finite numbers from `low` to `high`."""

    def parse(text: str) -> float:
        with suppress(ValueError):
            if low <= (number := float(text)) <= high and number < inf:
                return number
        wanted = f"{low:g} or more" if high == inf else f"between {low:g} and {high:g}"
        raise argparse.ArgumentTypeError(f"{text} is not {wanted}")

    return parse
