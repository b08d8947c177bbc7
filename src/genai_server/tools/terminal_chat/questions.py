"""Reads questions and commands from standard input, which may be a terminal."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from genai_server.cli.screen import screen
from genai_server.cli.standard_streams import piped_line

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_PROMPT, _MORE = "> ", "… "
# Begins and ends a text of several lines.
_QUOTES = '"""'


def question_reader(commands: Sequence[str]) -> Callable[[], str]:
    """Return a function that reads the next question or command, without quotes. It raises EOFError and
    KeyboardInterrupt.

    In a terminal, lines can be edited and recalled, pasted text is one question, and Tab completes `commands`.
    """
    console = screen()
    can_edit = sys.stdin.isatty() and console is not None and not console.is_dumb_terminal
    ask = _session(commands).prompt if can_edit else _plain

    def read() -> str:
        text = ask().strip()
        return text[len(_QUOTES) :].removesuffix(_QUOTES).strip() if text.startswith(_QUOTES) else text

    return read


def is_confirmed(question: str) -> bool:
    """Ask a yes-or-no question. Returns whether the user answers yes; the end of the input counts as no."""
    try:
        answer = input(question) if sys.stdin.isatty() else piped_line()
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _is_open(text: str) -> bool:
    """Whether a text begins with triple quotes that are not closed."""
    text = text.strip()
    return text.startswith(_QUOTES) and not text[len(_QUOTES) :].endswith(_QUOTES)


def _plain() -> str:
    is_typed = sys.stdin.isatty()
    text = input(_PROMPT) if is_typed else piped_line()
    while _is_open(text):
        text += "\n" + (input(_MORE) if is_typed else piped_line())
    return text


def _session(commands: Sequence[str]) -> "PromptSession[str]":
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if _is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        _PROMPT,
        multiline=True,
        prompt_continuation=_MORE,
        key_bindings=keys,
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
    )
