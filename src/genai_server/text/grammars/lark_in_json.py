"""A request's grammar of Lark for a text, as one for that text within a JSON string.

A call carries the text of a custom tool as JSON does, with a backslash before quotes, backslashes and line ends, and
llguidance has no operator that would quote a grammar. So each literal and each expression of the source is rewritten.

llguidance's lexer looks no byte ahead, and takes the longest lexeme. A line that may have an escape in it could not end
before an escaped line end, as both begin with a backslash. So what may have an escape is several lexemes: runs of plain
characters, and escapes. A terminal with escapes becomes a rule.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from genai_server.errors import InvalidField
from genai_server.quoted_values import quoted

# JSON's escapes of one letter, by the characters that need one.
_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
# Characters that stand in a JSON string as they are.
_PLAIN = r'[^"\\\x00-\x1f]'
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
    |%import\s+common\s*\.\s*(?P<import>\w+)(\s*->\s*(?P<alias>\w+))?
    |(?P<ignore>%ignore\b)
    |(?P<refused>%\w*|<[^<>\s]*>|@[\w-]*|[A-Za-z_][\w-]*\[[^\]\n]*\]\s*:|[&]|~(?!\s*\d))
    |(?P<head>[?!]?[A-Za-z_][\w-]*)\s*:(?!:)
    |(?P<name>[A-Za-z_][\w-]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")(?P<folded>i?)
    |/(?P<expression>(?:[^/\\\n]|\\.)+)/(?P<flags>[a-z]*)
    |(?P<other>\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)
# Of Lark's own terminals those that have such characters; the others are llguidance's.
_COMMON = {
    "CR": r"/\r/",
    "LF": r"/\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "WS": r"/[ \t\f\r\n]+/",
    "WS_INLINE": r"/[ \t]+/",
    "ESCAPED_STRING": r'/"([^"\\\n]|\\[^\n])*"/',
}
_FLAGS = re.compile(r"\?([a-z]*)(-[a-z]+)?([:)])")
_QUANTIFIER = re.compile(r"([*+?]|\{\d*,?\d*\})\??")
_CODES = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]+)\}|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]+)\}")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
# Which of the escaped characters these classes have.
_CLASSES = {"d": "", "w": "", "s": "\f\n\r\t", "D": '"\\\b\f\n\r\t', "W": '"\\\b\f\n\r\t', "S": '"\\\b'}


def in_json(source: str, *, param: str) -> str:
    """The grammar of the text as it stands between a JSON string's quotes. Raises InvalidField for `param`."""
    try:
        statements = [*_statements(source, param)]
        with_escapes = _with_escapes(statements)
        ignored = {part.text for one in statements if not one.head for part in one.parts if part.is_name}
        return "\n".join(line for one in statements for line in one.rewritten(with_escapes, ignored))
    except (RecursionError, OverflowError):
        raise InvalidField(f"{param}: an expression of the grammar is nested too deeply", param=param) from None


@dataclass(frozen=True)
class _Part:
    """A piece of a rule, in two forms: for one lexeme, and for a rule, where it may be several."""

    text: str
    in_rule: str
    has_escape: bool = False
    is_name: bool = False


@dataclass(frozen=True)
class _Statement:
    """A rule, a terminal, or with an empty head what is ignored."""

    head: str
    parts: list[_Part]

    @property
    def is_terminal(self) -> bool:
        """Whether it is a terminal."""
        return self.head[:1].isupper()

    def rewritten(self, with_escapes: Iterable[str], ignored: Iterable[str]) -> Iterator[str]:
        """The lines that stand for it; `with_escapes` are the terminals that have become rules."""
        whole = "".join(part.text for part in self.parts)
        if not self.head:
            yield f"%ignore {whole}"
            return
        if self.is_terminal and (self.head not in with_escapes or self.head in ignored):
            yield f"{self.head}: {whole}"
        if self.head in with_escapes or not self.is_terminal:
            head = _rule(self.head) if self.is_terminal else self.head
            named = (
                _rule(part.text) if part.is_name and part.text in with_escapes else part.in_rule for part in self.parts
            )
            yield f"{head}: {''.join(named)}"


def _rule(terminal: str) -> str:
    """The name of the rule that takes a terminal's place."""
    return f"text_of_{terminal.lower()}"


def _statements(source: str, param: str) -> Iterator[_Statement]:
    current: _Statement | None = None
    for token in _TOKEN.finditer(source):
        if token["refused"] is not None:
            raise InvalidField(
                f"{param}: the grammar of a custom tool may have literals, expressions, %import common and %ignore, "
                f"given {quoted(token[0].strip())}",
                param=param,
            )
        if token["import"] is not None or token["ignore"] is not None or token["head"] is not None:
            if current is not None:
                yield current
            current = _begun(token, param)
        elif token["comment"] is None:
            if current is None and token[0].strip():
                raise InvalidField(f"{param}: the grammar does not begin with a rule", param=param)
            if current is not None:
                current.parts.append(_part(token, param))
    if current is not None:
        yield current


def _begun(token: re.Match[str], param: str) -> _Statement:
    if token["import"] is None:
        return _Statement(token["head"] or "", [])
    name, alias = token["import"], token["alias"] or token["import"]
    if name not in _COMMON:
        return _Statement(alias, [_Part(_common(name, param), _common(name, param))])
    known = _TOKEN.match(_COMMON[name])
    assert known is not None
    return _Statement(alias, [_part(known, param)])


def _common(name: str, param: str) -> str:
    """Lark's own terminal, for those without escaped characters."""
    found = _PLAIN_COMMON.get(name)
    if found is None:
        raise InvalidField(f"{param}: common has no {quoted(name)} here", param=param)
    return found


_PLAIN_COMMON: Mapping[str, str] = {
    "DIGIT": "/[0-9]/",
    "HEXDIGIT": "/[0-9a-fA-F]/",
    "INT": "/[0-9]+/",
    "SIGNED_INT": "/[+-]?[0-9]+/",
    "DECIMAL": r"/[0-9]+\.[0-9]*|\.[0-9]+/",
    "FLOAT": r"/[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?/",
    "SIGNED_FLOAT": r"/[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)/",
    "NUMBER": r"/([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][+-]?[0-9]+)?/",
    "SIGNED_NUMBER": r"/[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][+-]?[0-9]+)?/",
    "LCASE_LETTER": "/[a-z]/",
    "UCASE_LETTER": "/[A-Z]/",
    "LETTER": "/[a-zA-Z]/",
    "WORD": "/[a-zA-Z]+/",
    "CNAME": "/[a-zA-Z_][a-zA-Z0-9_]*/",
}


def _part(token: re.Match[str], param: str) -> _Part:
    if token["string"] is not None:
        return _literal(token["string"], token["folded"], param)
    if token["expression"] is not None:
        flags = token["flags"]
        node = _Expression(token["expression"], flags, param).whole()
        text = f"/{node.lexeme}/{flags}"
        return _Part(text, text if node.lark is None else f"({node.lark})", node.lark is not None)
    return _Part(token[0], token[0], is_name=token["name"] is not None)


def _with_escapes(statements: list[_Statement]) -> set[str]:
    """The terminals that have escapes, or others in them that have."""
    terminals = [one for one in statements if one.is_terminal]
    found = {one.head for one in terminals if any(part.has_escape for part in one.parts)}
    while more := {one.head for one in terminals for part in one.parts if part.is_name and part.text in found} - found:
        found |= more
    return found


def _literal(text: str, folded: str, param: str) -> _Part:
    try:
        value: str = json.loads(text)
    except ValueError:
        raise InvalidField(
            f"{param}: the literal {quoted(text)} has an escape that is not JSON's", param=param
        ) from None
    written = json.dumps(value, ensure_ascii=False)[1:-1]
    if written == value:
        return _Part(text + folded, text + folded)
    lexeme = json.dumps(written, ensure_ascii=False)
    pieces = [piece for piece in re.split(r"(\\u[0-9a-f]{4}|\\.)", written) if piece]
    # Of an escape that ignores case another letter would be another character.
    told = [_text(piece) + ("" if piece.startswith("\\") else folded) for piece in pieces]
    return _Part(lexeme, f"({' '.join(told)})", has_escape=True)


def _text(written: str) -> str:
    return json.dumps(written, ensure_ascii=False)


@dataclass(frozen=True)
class _Node:
    """A part of an expression."""

    # As an expression for one lexeme.
    lexeme: str
    # As an expression of Lark; None if it has no escapes.
    lark: str | None = None
    # Of a class: its plain characters, and its escapes, as expressions.
    plain: str = ""
    escapes: str = ""


class _Expression:
    """A regular expression of Rust, while it is read."""

    def __init__(self, text: str, flags: str, param: str) -> None:
        self._text = text
        self._flags = flags
        self._param = param
        self._place = 0
        # Whether a dot is also a line end.
        self._dots = "s" in flags
        if "x" in flags:
            raise self._refused("has the flag x")

    def whole(self) -> _Node:
        """All of it."""
        node = self._alternatives()
        if self._place < len(self._text):
            raise self._refused("closes a group that is not open")
        return node

    def _alternatives(self) -> _Node:
        dots, found = self._dots, [self._sequence()]
        while self._text.startswith("|", self._place):
            self._place += 1
            found.append(self._sequence())
        self._dots = dots
        if len(found) == 1:
            return found[0]
        lexeme = "|".join(node.lexeme for node in found)
        return _Node(lexeme, None if all(node.lark is None for node in found) else " | ".join(map(self._lark, found)))

    def _sequence(self) -> _Node:
        found: list[_Node] = []
        while self._place < len(self._text) and self._text[self._place] not in "|)":
            found.append(self._repeated())
        if all(node.lark is None for node in found):
            return _Node("".join(node.lexeme for node in found))
        parts: list[str] = []
        plain = ""
        for node in [*found, _Node("", "")]:
            if node.lark is None:
                plain += node.lexeme
                continue
            parts += [self._chunk(plain)] if plain else []
            parts += [node.lark] if node.lark else []
            plain = ""
        return _Node("".join(node.lexeme for node in found), " ".join(parts))

    def _repeated(self) -> _Node:
        node = self._atom()
        found = _QUANTIFIER.match(self._text, self._place)
        if found is None:
            return node
        self._place = found.end()
        if node.lark is None:
            return _Node(node.lexeme + found[0])
        times = found[1]
        run = f"({self._chunk(node.plain + '+')} | {self._chunk(node.escapes)})" if node.plain else f"({node.lark})"
        return _Node(node.lexeme + found[0], (run if times in ("*", "+") else f"({node.lark})") + times)

    def _atom(self) -> _Node:
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
        if self._place >= len(self._text):
            raise self._refused("ends too early")
        self._place += 1
        return self._text[self._place - 1]

    def _group(self) -> _Node:
        found, dots, opening = _FLAGS.match(self._text, self._place), self._dots, "("
        if found is not None:
            self._place = found.end()
            if "x" in found[1]:
                raise self._refused("has the flag x")
            dots = "s" in found[1] or (dots and "s" not in (found[2] or ""))
            if found[3] == ")":
                self._dots = dots
                return _Node(f"({found[0]}")
            opening = f"({found[0]}"
        before, self._dots = self._dots, dots
        inner = self._alternatives()
        self._dots = before
        if self._next() != ")":
            raise self._refused("has a group that is not closed")
        return _Node(f"{opening}{inner.lexeme})", None if inner.lark is None else f"({inner.lark})")

    def _escape(self) -> _Node:
        if code := _CODES.match(self._text, self._place):
            self._place = code.end()
            number = int(next(filter(None, code.groups())), 16)
            if number > 0x10FFFF:
                raise self._refused(f"has \\{code[0]}, which is no character")
            return self._character(chr(number))
        char = self._next()
        if char in _CLASSES:
            return self._class(f"[\\{char}&&{_PLAIN}]", _CLASSES[char])
        if char in _CONTROLS:
            return self._character(_CONTROLS[char])
        if char in "pP":
            return _Node(f"[\\{char}{self._property()}&&{_PLAIN}]")
        if char.isalnum():
            raise self._refused(f"has \\{char}")
        return self._character(char)

    def _property(self) -> str:
        name = self._next()
        while name.startswith("{") and not name.endswith("}"):
            name += self._next()
        return name

    def _set(self) -> _Node:
        """A class in brackets, which may have others in it."""
        begin, depth = self._place, 1
        while depth:
            char = self._next()
            if char == "\\":
                self._next()
            elif char == "[":
                depth += 1
            elif char == "]" and self._text[begin : self._place - 1] not in ("", "^"):
                depth -= 1
        inner = self._text[begin : self._place - 1]
        return self._class(f"[[{inner}]&&{_PLAIN}]", "".join(char for char in _ESCAPES if _has(inner, char)))

    def _class(self, plain: str, escaped: str) -> _Node:
        """A character of a class, or one of those that JSON escapes."""
        if not escaped:
            return _Node(plain)
        letters = "".join(f"\\{_ESCAPES[char]}" if char in '"\\' else _ESCAPES[char] for char in escaped)
        escapes = f"\\\\[{letters}]"
        lark = f"({self._chunk(plain)} | {self._chunk(escapes)})"
        return _Node(f"(?:{plain}|{escapes})", lark, plain, escapes)

    def _character(self, char: str, *, is_literal: bool = True) -> _Node:
        """One character; unless it is literal, one that means something in expressions keeps its meaning."""
        written = json.dumps(char, ensure_ascii=False)[1:-1]
        if written != char:
            return _Node(re.sub(r'[\\"]', r"\\\g<0>", written), _text(written))
        if not is_literal or char.isalnum() or char == " " or not char.isascii():
            return _Node(char)
        return _Node(f"\\{char}")

    def _lark(self, node: _Node) -> str:
        return self._chunk(node.lexeme) if node.lark is None else node.lark

    def _chunk(self, lexeme: str) -> str:
        return f"/{lexeme}/{self._flags}" if lexeme else '""'

    def _refused(self, what: str) -> InvalidField:
        return InvalidField(f"{self._param}: the expression {quoted(self._text)} {what}", param=self._param)


def _has(inner: str, char: str) -> bool:
    """Whether a class has a character, as far as Python reads it as Rust does; else it has not."""
    if re.search(r"(?<!\\)\[|&&|--|~~|\\[pPxuz]", inner):
        return False
    try:
        return re.fullmatch(f"[{inner}]", char) is not None
    except re.error:
        return False
