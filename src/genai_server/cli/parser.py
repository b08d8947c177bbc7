"""The parser of the command line (`SuggestingParser`), which suggests the option or command that was probably meant,
and argparse types for values of options: `path_of`, `positive` and `number_from`.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, NoReturn

from genai_server.errors import did_you_mean

# Maximum lines of a usage message that still leave the error in sight.
_MAX_USAGE = 12
# What pydantic takes for a bool, and the empty value, which counts as not given.
_TRUTH_VALUES = frozenset({"", "true", "false", "1", "0", "yes", "no", "on", "off", "y", "n", "t", "f"})
# Commands of other programs, and those that do the same here.
_EQUIVALENT_COMMANDS = {"list": "models", "ls": "models", "rm": "models remove", "ps": "top", "download": "pull"}
# Options of other programs that no option here replaces, and what to do instead.
_WITHOUT_COUNTERPART = {
    "--disable-auto-complete-config": "leave it out: a model directory describes its model; "
    "`genai-server import-triton` translates a config.pbtxt of Triton"
}


class _HelpFormatter(argparse.HelpFormatter):
    """Formats the texts that --help shows: each paragraph is wrapped to the width of the terminal, and indented lines,
    such as examples, stay as they are.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = textwrap.dedent(text).strip("\n").split("\n\n")
        return "\n\n".join(
            paragraph if "\n  " in f"\n{paragraph}" else textwrap.fill(paragraph, width, break_on_hyphens=False)
            for paragraph in paragraphs
        )


class SuggestingParser(argparse.ArgumentParser):
    """The parser of `genai-server` and each of its commands. For an unknown option or command, it ends the program with
    a message that suggests a similar one and shows the usage of the command that was named.

    If `rest_to` is set, arguments after `--` are not parsed, but stored as a list in the attribute with this name, for
    commands that pass them to another program. If `rest_to` is "", these arguments are parsed like others.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter, **how})
        self.rest_to = ""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse all arguments; argparse calls this for each command. Returns the namespace and an empty list, since
        unknown arguments end the program with the usage and a suggestion.
        """
        words, passed_on = [*(sys.argv[1:] if args is None else args)], []
        if self.rest_to and "--" in words:
            end = words.index("--")
            words, passed_on = words[:end], words[end + 1 :]
        parsed, unknown = super().parse_known_args(self._completed(words), namespace)
        if self.rest_to:
            setattr(parsed, self.rest_to, passed_on)
        for action in self._actions:
            # Before 3.12.7 Python takes an argument that may be left out for left out if an option stands before it.
            may_follow = not action.option_strings and action.nargs == argparse.OPTIONAL
            is_unset = may_follow and getattr(parsed, action.dest, None) is action.default
            if is_unset and unknown and not unknown[0].startswith("-"):
                setattr(parsed, action.dest, self._get_values(action, [unknown.pop(0)]))
        if unknown:
            option = unknown[0].partition("=")[0]
            options = [name for action in self._actions for name in action.option_strings]
            instead = _WITHOUT_COUNTERPART.get(option)
            suggestion = f"; {instead}" if instead else did_you_mean(option, options)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion}")
        return parsed, unknown

    def _completed(self, arguments: Iterable[str]) -> list[str]:
        """Return the arguments with `=true` added to each switch (an option whose value may be true or false) that no
        such value follows, as `--insecure` in `--insecure ./model`.
        """
        switches = [action for action in self._actions if action.nargs == argparse.OPTIONAL and action.const]
        alone = {name: f"{name}={action.const}" for action in switches for name in action.option_strings}
        return [
            argument if after.lower() in _TRUTH_VALUES else alone.get(argument, argument)
            for argument, after in pairwise([*arguments, "--"])
        ]

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            choices = [str(choice) for choice in action.choices or ()]
            equivalent = _EQUIVALENT_COMMANDS.get(str(value), "")
            suggestion = (
                f"; did you mean {equivalent}?"
                if equivalent.partition(" ")[0] in choices
                else did_you_mean(str(value), choices)
            )
            raise argparse.ArgumentError(action, error.message + suggestion) from None

    def error(self, message: str) -> NoReturn:
        """End the program with exit status 2, after printing the usage and `message`. A long usage is replaced by a
        hint to use --help.
        """
        usage = self.format_usage()
        if len(usage.splitlines()) > _MAX_USAGE:
            usage = f"usage: {self.prog} [OPTION]…\n"
        if "OPTION" in usage:
            usage += f"       {self.prog} --help lists the options\n"
        self.exit(2, f"{usage}{self.prog}: error: {message}\n")


def path_of(text: str) -> Path:
    """Return the path that `text` from the command line stands for, with ~ expanded to the user's home directory. The ~
    of an unknown user stays unchanged.
    """
    return Path(os.path.expanduser(text))


def positive(text: str) -> int:
    """Parse an option's value as an integer of at least 1; a type for argparse. Raises ArgumentTypeError for other
    values.
    """
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")


def number_from(low: float, high: float = inf) -> Callable[[str], float]:
    """Return a type for argparse: a function that parses an option's value as a finite number from `low` to `high`, and
    raises ArgumentTypeError for other values.
    """

    def parse(text: str) -> float:
        with suppress(ValueError):
            if low <= (number := float(text)) <= high and number < inf:
                return number
        rule = f"{low:g} or more" if high == inf else f"between {low:g} and {high:g}"
        raise argparse.ArgumentTypeError(f"{text} is not {rule}")

    return parse
