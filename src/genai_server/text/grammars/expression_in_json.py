"""Rewrites a regular expression of a grammar so that it matches its text in the form that JSON strings have (escaped).

lark_in_json.py explains why an expression whose text may need escapes becomes several lexemes.
"""

import json
import re
from dataclasses import dataclass

from genai_server.errors import InvalidField, quoted

# JSON's single-letter escapes, keyed by character.
_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
# Characters that appear unescaped in a JSON string.
_PLAIN = r'[^"\\\x00-\x1f]'
_FLAGS = re.compile(r"\?([a-z]*)(-[a-z]+)?([:)])")
_QUANTIFIER = re.compile(r"([*+?]|\{\d*,?\d*\})\??")
_CODES = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]+)\}|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]+)\}")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
# The escaped characters contained in these classes.
_CLASSES = {"d": "", "w": "", "s": "\f\n\r\t", "D": '"\\\b\f\n\r\t', "W": '"\\\b\f\n\r\t', "S": '"\\\b'}


@dataclass(frozen=True)
class Node:
    """A part of a regular expression, rewritten for text inside a JSON string."""

    # The part as an expression for one lexeme.
    lexeme: str
    # The part as a Lark expression; None without escapes.
    lark: str | None = None
    # For a character class: expressions for its plain characters and for its escapes.
    plain: str = ""
    escapes: str = ""


class Expression:
    """Parser of a regular expression in the syntax of Rust's `regex` crate.

    Raises InvalidField for what is unsupported.
    """

    def __init__(self, text: str, flags: str, param: str) -> None:
        self._text = text
        self._flags = flags
        self._param = param
        self._position = 0
        # Whether a dot also matches a line end.
        self._dots = "s" in flags
        if "x" in flags:
            raise self._refused("has the flag x")

    def whole(self) -> Node:
        """Parse the entire expression and return it rewritten."""
        node = self._alternatives()
        if self._position < len(self._text):
            raise self._refused("closes a group that is not open")
        return node

    def _alternatives(self) -> Node:
        dots, nodes = self._dots, [self._sequence()]
        while self._text.startswith("|", self._position):
            self._position += 1
            nodes.append(self._sequence())
        self._dots = dots
        if len(nodes) == 1:
            return nodes[0]
        lexeme = "|".join(node.lexeme for node in nodes)
        return Node(lexeme, None if all(node.lark is None for node in nodes) else " | ".join(map(self._lark, nodes)))

    def _sequence(self) -> Node:
        nodes: list[Node] = []
        while self._position < len(self._text) and self._text[self._position] not in "|)":
            nodes.append(self._repeated())
        if all(node.lark is None for node in nodes):
            return Node("".join(node.lexeme for node in nodes))
        parts: list[str] = []
        plain = ""
        for node in [*nodes, Node("", "")]:
            if node.lark is None:
                plain += node.lexeme
                continue
            parts += [self._chunk(plain)] if plain else []
            parts += [node.lark] if node.lark else []
            plain = ""
        return Node("".join(node.lexeme for node in nodes), " ".join(parts))

    def _repeated(self) -> Node:
        node = self._atom()
        match = _QUANTIFIER.match(self._text, self._position)
        if match is None:
            return node
        self._position = match.end()
        if node.lark is None:
            return Node(node.lexeme + match[0])
        times = match[1]
        run = f"({self._chunk(node.plain + '+')} | {self._chunk(node.escapes)})" if node.plain else f"({node.lark})"
        return Node(node.lexeme + match[0], (run if times in ("*", "+") else f"({node.lark})") + times)

    def _atom(self) -> Node:
        char = self._next()
        match char:
            case ".":
                return self._class(_PLAIN, '"\\\b\f\r\t' + ("\n" if self._dots else ""))
            case "[":
                return self._set()
            case "\\":
                return self._escape()
            case "(":
                return self._group()
            case _:
                return self._character(char, is_literal=False)

    def _next(self) -> str:
        if self._position >= len(self._text):
            raise self._refused("ends too early")
        self._position += 1
        return self._text[self._position - 1]

    def _group(self) -> Node:
        match, dots, opening = _FLAGS.match(self._text, self._position), self._dots, "("
        if match is not None:
            self._position = match.end()
            if "x" in match[1]:
                raise self._refused("has the flag x")
            dots = "s" in match[1] or (dots and "s" not in (match[2] or ""))
            if match[3] == ")":
                self._dots = dots
                return Node(f"({match[0]}")
            opening = f"({match[0]}"
        before, self._dots = self._dots, dots
        inner = self._alternatives()
        self._dots = before
        if self._next() != ")":
            raise self._refused("has a group that is not closed")
        return Node(f"{opening}{inner.lexeme})", None if inner.lark is None else f"({inner.lark})")

    def _escape(self) -> Node:
        if code := _CODES.match(self._text, self._position):
            self._position = code.end()
            number = int(next(filter(None, code.groups())), 16)
            if number > 0x10FFFF:
                raise self._refused(f"has \\{code[0]}, which is not a character")
            return self._character(chr(number))
        char = self._next()
        if char in _CLASSES:
            return self._class(f"[\\{char}&&{_PLAIN}]", _CLASSES[char])
        if char in _CONTROLS:
            return self._character(_CONTROLS[char])
        if char in "pP":
            return Node(f"[\\{char}{self._property()}&&{_PLAIN}]")
        if char.isalnum():
            raise self._refused(f"has \\{char}")
        return self._character(char)

    def _property(self) -> str:
        name = self._next()
        while name.startswith("{") and not name.endswith("}"):
            name += self._next()
        return name

    def _set(self) -> Node:
        """Parse a bracketed character class, which may contain other classes, after its opening bracket."""
        begin, depth = self._position, 1
        while depth:
            char = self._next()
            if char == "\\":
                self._next()
            elif char == "[":
                depth += 1
            elif char == "]" and self._text[begin : self._position - 1] not in ("", "^"):
                depth -= 1
        inner = self._text[begin : self._position - 1]
        return self._class(f"[[{inner}]&&{_PLAIN}]", "".join(char for char in _ESCAPES if _has(inner, char)))

    def _class(self, plain: str, escaped: str) -> Node:
        """Return a node for one character of a class.

        `plain` is an expression for the characters that JSON does not escape, `escaped` are the characters of the class
        that JSON escapes.
        """
        if not escaped:
            return Node(plain)
        letters = "".join(f"\\{_ESCAPES[char]}" if char in '"\\' else _ESCAPES[char] for char in escaped)
        escapes = f"\\\\[{letters}]"
        lark = f"({self._chunk(plain)} | {self._chunk(escapes)})"
        return Node(f"(?:{plain}|{escapes})", lark, plain, escapes)

    def _character(self, char: str, *, is_literal: bool = True) -> Node:
        """Return a node for one character. Unless `is_literal`, a metacharacter keeps its meaning in the expression."""
        written = json.dumps(char, ensure_ascii=False)[1:-1]
        if written != char:
            return Node(re.sub(r'[\\"]', r"\\\g<0>", written), json.dumps(written, ensure_ascii=False))
        if not is_literal or char.isalnum() or char == " " or not char.isascii():
            return Node(char)
        return Node(f"\\{char}")

    def _lark(self, node: Node) -> str:
        return self._chunk(node.lexeme) if node.lark is None else node.lark

    def _chunk(self, lexeme: str) -> str:
        return f"/{lexeme}/{self._flags}" if lexeme else '""'

    def _refused(self, what: str) -> InvalidField:
        return InvalidField(self._param, f"cannot be used: the expression {quoted(self._text)} {what}")


def _has(inner: str, char: str) -> bool:
    """Whether a character class contains a character.

    Also False if Python would parse the class differently from Rust.
    """
    if re.search(r"(?<!\\)\[|&&|--|~~|\\[pPxuz]", inner):
        return False
    try:
        return re.fullmatch(f"[{inner}]", char) is not None
    except re.error:
        return False
