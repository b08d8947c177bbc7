"""Reads Python literals, as some models write the arguments of tool calls, and converts them to JSON."""

import ast
import json
import re
import warnings

from genai_server.text.answers.json_text import is_json
from genai_server.text.answers.lookahead import Lookahead, Reader

_PLAIN = re.compile(r"[^'\"()\[\]{},]*")
_IN_STRING = re.compile(r"[^'\"\\\n]*")
_JSON_WORDS = {"true": True, "false": False, "null": None}


def read_literal(text: Lookahead) -> Reader[str | None]:
    """Read the text of a Python literal up to a comma or closing parenthesis. Returns None if neither follows."""
    start, depth = text.at, 0
    while True:
        yield from text.take_all(_PLAIN)
        char = yield from text.peek()
        if not char or (depth == 0 and char in ",)]}"):
            return text.since(start) if char and char in ",)" else None
        if char in "'\"":
            if not (yield from _read_string(text, char)):
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


def _read_string(text: Lookahead, quote: str) -> Reader[bool]:
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
