"""Reads what the user of a terminal chat enters: questions and commands, image files, and values of request fields."""

import base64
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genai_server.cli.screen import screen
from genai_server.cli.standard_streams import piped_line
from genai_server.errors import ChatFailed, did_you_mean, quoted
from genai_server.media.images.image_header import IMAGE_FORMATS, image_type

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_PROMPT, _MORE = "> ", "… "
# Begins and ends a text of several lines.
_QUOTES = '"""'
# Limit of an image file.
_MAX_BYTES = 20 * 1024 * 1024
Value = float | int | str
# The fields of a chat request that the user may set. The server checks the ranges.
_KINDS: dict[str, type[float] | type[int] | type[str]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "stop": str,
    "repetition_penalty": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repeat_last_n": int,
    "reasoning_effort": str,
    "thinking_token_budget": int,
}
PARAMETERS = tuple(_KINDS)
_WORDS = {float: "a number", int: "a whole number"}


def question_reader(commands: Sequence[str]) -> Callable[[], str]:
    """Return a function that waits for the user's next question or command and returns it, without triple quotes around
    a text of several lines. The function raises EOFError at the end of the input, and KeyboardInterrupt after Ctrl-C.

    In a terminal, lines can be edited and recalled, pasted text is one question, and Tab completes `commands`.
    """
    console = screen()
    can_edit = sys.stdin.isatty() and console is not None and not console.is_dumb_terminal
    ask = _session(commands).prompt if can_edit else _plain

    def read_question() -> str:
        text = ask().strip()
        return text[len(_QUOTES) :].removesuffix(_QUOTES).strip() if text.startswith(_QUOTES) else text

    return read_question


def is_confirmed(question: str) -> bool:
    """Ask a yes-or-no question. Returns whether the user answers yes; the end of the input counts as no."""
    try:
        answer = input(question) if sys.stdin.isatty() else piped_line()
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _is_open(text: str) -> bool:
    """Whether a text begins with triple quotes that are not closed, so that more lines belong to it."""
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


def data_url(path: Path) -> str:
    """Read an image file and return it as a data URL (base64), as chat requests contain images.

    Raises ChatFailed if the file cannot be read, is not an image, or is larger than 20 MiB.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ChatFailed(f"{path} cannot be read: {(isinstance(error, OSError) and error.strerror) or error}") from None
    media_type = image_type(content)
    if media_type is None:
        raise ChatFailed(f"{path} is not a {IMAGE_FORMATS} image")
    if len(content) > _MAX_BYTES:
        raise ChatFailed(f"{path} has {size} bytes; an image may have at most {_MAX_BYTES}")
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def require_known(name: str) -> None:
    """Raise ChatFailed, with a suggestion, if `name` is not a request field that the user may set in a chat."""
    if name not in _KINDS:
        suggestion = did_you_mean(name, PARAMETERS)
        raise ChatFailed(f"there is no setting {quoted(name)}{suggestion} (known: {', '.join(PARAMETERS)})")


def parse(name: str, text: str) -> Value:
    """Return the value of the request field `name`, such as temperature, parsed from what the user has typed. Raises
    ChatFailed for an unknown field or a value of a wrong type.
    """
    require_known(name)
    kind = _KINDS[name]
    try:
        return kind(text)
    except ValueError:
        raise ChatFailed(f"{name} must be {_WORDS[kind]}, not {quoted(text)}") from None
