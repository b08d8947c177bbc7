"""Command-line parsers that suggest the option that was probably meant, and the types of their numbers."""

import argparse
import difflib
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from typing import Any, NoReturn

# Maximum lines of a usage message that still leave the error in sight.
_MAX_USAGE = 12
_ALIKE = 0.6


class Parser(argparse.ArgumentParser):
    """A parser that itself refuses unknown arguments, so that the usage shown is the subcommand's."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse all arguments; ends with the usage if one is unknown."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(option, known)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            known = map(str, action.choices or ())
            raise argparse.ArgumentError(action, error.message + did_you_mean(str(value), known)) from None

    def error(self, message: str) -> NoReturn:
        """End with the usage and the message. A long usage is replaced by a hint at --help."""
        usage = self.format_usage()
        if len(usage.splitlines()) > _MAX_USAGE:
            usage = f"usage: {self.prog} [OPTION]…\n       {self.prog} --help lists the options\n"
        self.exit(2, f"{usage}{self.prog}: error: {message}\n")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of an error message: the known name most like the given one, or nothing."""
    found = difflib.get_close_matches(given, list(known), 1, _ALIKE)
    return f"; did you mean {found[0]}?" if found else ""


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
