"""The types of numbers and paths in command-line options."""

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path


def path_of(text: str) -> Path:
    """The path that was typed. Its ~ is the user's home; one of an unknown user stays as it is."""
    return Path(os.path.expanduser(text))


def positive(text: str) -> int:
    """The whole number of an option, at least 1."""
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")


def number_from(low: float, high: float = inf) -> Callable[[str], float]:
    """The type of an option that is a finite number in this range."""

    def parse(text: str) -> float:
        with suppress(ValueError):
            if low <= (number := float(text)) <= high and number < inf:
                return number
        wanted = f"{low:g} or more" if high == inf else f"between {low:g} and {high:g}"
        raise argparse.ArgumentTypeError(f"{text} is not {wanted}")

    return parse
