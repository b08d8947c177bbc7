"""Strict readers of JSON text (RFC 8259) without a depth limit, and of Python literals, as some models write the
arguments of tool calls, which are converted to JSON.
"""

import ast
import json
import re
import warnings

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


_PLAIN_LITERAL = re.compile(r"[^'\"()\[\]{},]*")
_IN_STRING = re.compile(r"[^'\"\\\n]*")
_JSON_WORDS = {"true": True, "false": False, "null": None}


def read_literal(text: Lookahead) -> Reader[str | None]:
    """Read the text of a Python literal up to a comma or closing parenthesis. Returns None if neither follows."""
    start, depth = text.at, 0
    while True:
        yield from text.take_all(_PLAIN_LITERAL)
        char = yield from text.peek()
        if not char or (depth == 0 and char in ",)]}"):
            return text.since(start) if char and char in ",)" else None
        if char in "'\"":
            if not (yield from _read_python_string(text, char)):
                return None
            continue
        depth += (char in "([{") - (char in ")]}")
        text.at += 1


def to_json(literal: str) -> str | None:
    """Convert a Python literal to JSON text. Returns None if it is invalid or has no equivalent in JSON.

    Text that is already JSON is returned unchanged, so `true`, `false` and `null` are accepted, too.
    """
    if is_json(literal):
        return literal.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about unknown escapes
            tree = ast.parse(literal.strip(), mode="eval")
        value = ast.literal_eval(_JsonWords().visit(tree))
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # Two escapes of a surrogate pair are one character in JSON.
        return text if text.isascii() or _encodable(text) else json.dumps(value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


class _JsonWords(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_python_string(text: Lookahead, quote: str) -> Reader[bool]:
    """Read a Python string with single or triple quotes. Returns whether the string is complete."""
    end = quote * 3
    if not (yield from text.take(end)):
        end = quote
        text.at += 1
    while not (yield from text.take(end)):
        char = yield from text.peek()
        if not char or (char == "\n" and end == quote):
            return False
        text.at += 1
        if char == "\\":
            yield from text.peek()
            text.at += 1
        text.take_here(_IN_STRING)
    return True
