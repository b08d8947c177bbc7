"""Strict readers of JSON text (RFC 8259) without a depth limit."""

import re

from genai_server.text.answers.lookahead import Lookahead, Reader, read_now

# Surrogates are invalid in UTF-8.
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*')
_HEX = re.compile(r"[0-9a-fA-F]")
_WORD = re.compile(r"[-+.0-9A-Za-z_]*")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def read_value(text: Lookahead) -> Reader[bool]:
    """Read a JSON value at the text's position and return whether it is valid.

    If the value is not valid JSON, `text.at` is at the first invalid character, or at the end of the text.
    """
    closers: list[str] = []
    while True:
        char = yield from text.skip_space()
        opened = char and char in "{["
        if opened:
            text.at += 1
            closers.append("}" if char == "{" else "]")
            opened = (yield from text.skip_space()) != closers[-1]
        elif not (yield from _read_scalar(text)):
            return False
        while closers and not opened:
            char = yield from text.skip_space()
            if char != closers[-1] and char != ",":
                return False
            text.at += 1
            if char == ",":
                break
            closers.pop()
        if not closers:
            return True
        if closers[-1] == "}":
            yield from text.skip_space()
            if not (yield from read_string(text)) or not (yield from read_colon(text)):
                return False


def is_json(value: str) -> bool:
    """Whether a text is one JSON value, possibly surrounded by whitespace."""
    text = Lookahead()
    text.append(value)
    text.end()
    return read_now(read_value(text)) and not read_now(text.skip_space())


def read_string(text: Lookahead) -> Reader[bool]:
    """Read a JSON string.

    Returns whether it is valid, and leaves `text.at` at an invalid character, as `read_value` does.
    """
    if (yield from text.peek()) != '"':
        return False
    text.at += 1
    while True:
        char = yield from text.peek()
        if text.take_here(_PLAIN):
            continue
        if char == '"':
            text.at += 1
            return True
        if char != "\\" or not (yield from _read_escape(text)):
            return False


def read_colon(text: Lookahead) -> Reader[bool]:
    """Read optional whitespace and a colon. Returns whether there was a colon."""
    yield from text.skip_space()
    return (yield from text.take(":"))


def _read_escape(text: Lookahead) -> Reader[bool]:
    text.at += 1
    char = yield from text.peek()
    if not char or char not in '"\\/bfnrtu':
        return False
    text.at += 1
    for _ in range(4 if char == "u" else 0):
        yield from text.peek()
        if not text.take_here(_HEX):
            return False
    return True


def _read_scalar(text: Lookahead) -> Reader[bool]:
    """Read a JSON string, number, `true`, `false` or `null`, and return whether it is valid.

    Numbers and words are read to their end before they are checked.
    """
    if (yield from text.peek()) == '"':
        return (yield from read_string(text))
    word = yield from text.peek_all(_WORD)
    valid = bool(_SCALAR.fullmatch(word))
    start = text.at
    text.at += len(word)
    if not valid and (yield from text.peek()):
        text.at = start
    return valid
