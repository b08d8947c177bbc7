"""A request's grammar of Lark for a text, as one for that text within a JSON string.

A call carries the text of a custom tool as JSON does, with a backslash before quotes, backslashes and line ends, and
llguidance has no operator that would quote a grammar. So each literal and each expression of the source is rewritten.
"""

import json
import re
from collections.abc import Iterator

from genai_server.errors import InvalidField
from genai_server.quoted_values import quoted

# JSON's escapes of one letter, by the characters that need one.
_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
# Characters that stand in a JSON string as they are.
_PLAIN = r'[^"\\\x00-\x1f]'
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<import>%import\s+common\s*\.\s*(?P<name>\w+)(\s*->\s*(?P<alias>\w+))?)
    |(?P<directive>%(?!ignore\b)\w*)
    |(?P<special><[^<>\s]*>)
    |(?P<string>"(?:[^"\\\n]|\\.)*")(?P<folded>i?)
    |/(?P<expression>(?:[^/\\\n]|\\.)+)/(?P<flags>[a-z]*)""",
    re.VERBOSE,
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
_CODES = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]+)\}|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]+)\}")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
# Which of the escaped characters these classes have.
_CLASSES = {"d": "", "w": "", "s": "\f\n\r\t", "D": '"\\\b\f\n\r\t', "W": '"\\\b\f\n\r\t', "S": '"\\\b'}


def in_json(source: str, *, param: str) -> str:
    """The grammar of the text as it stands between a JSON string's quotes. Raises InvalidField for `param`."""
    found, place = [], 0
    for token in _TOKEN.finditer(source):
        found.append(source[place : token.start()])
        found.append(_rewritten(token, param))
        place = token.end()
    return "".join([*found, source[place:]])


def _rewritten(token: re.Match[str], param: str) -> str:
    match token.lastgroup:
        case "comment":
            return ""
        case "directive" | "special":
            raise InvalidField(
                f"{param}: the grammar of a custom tool may have literals, expressions, %import common and %ignore, "
                f"given {quoted(token[0])}",
                param=param,
            )
    if token["import"] is not None:
        name, alias = token["name"], token["alias"] or token["name"]
        return f"{alias}: {in_json(_COMMON[name], param=param)}" if name in _COMMON else token[0]
    if token["string"] is not None:
        return _literal(token["string"], token["folded"], param)
    return f"/{''.join(_Expression(token['expression'], token['flags'], param).pieces())}/{token['flags']}"


def _literal(text: str, folded: str, param: str) -> str:
    try:
        value: str = json.loads(text)
    except ValueError:
        raise InvalidField(
            f"{param}: the literal {quoted(text)} has an escape that is not JSON's", param=param
        ) from None
    written = json.dumps(value, ensure_ascii=False)[1:-1]
    # Of an escape that ignores case another letter would be another character.
    return json.dumps(written, ensure_ascii=False) + (folded if written == value else "")


class _Expression:
    """A regular expression of Rust on its way."""

    def __init__(self, text: str, flags: str, param: str) -> None:
        self._text = text
        self._param = param
        self._place = 0
        # Whether a dot is also a line end, in each of the open groups.
        self._dots = ["s" in flags]
        if "x" in flags:
            raise self._refused("has the flag x")

    def pieces(self) -> Iterator[str]:
        """The parts of the rewritten expression."""
        while self._place < len(self._text):
            char = self._next()
            match char:
                case ".":
                    yield _any_of(_PLAIN, '"\\\b\f\r\t' + ("\n" if self._dots[-1] else ""))
                case "[":
                    yield self._set()
                case "\\":
                    yield self._escape()
                case "(":
                    yield self._group()
                case ")":
                    self._dots.pop()
                    if not self._dots:
                        raise self._refused("closes a group that is not open")
                    yield char
                case _:
                    yield _alone(char)

    def _next(self) -> str:
        if self._place >= len(self._text):
            raise self._refused("ends too early")
        self._place += 1
        return self._text[self._place - 1]

    def _group(self) -> str:
        dots = self._dots[-1]
        found = _FLAGS.match(self._text, self._place)
        if found is None:
            self._dots.append(dots)
            return "("
        self._place = found.end()
        if "x" in found[1]:
            raise self._refused("has the flag x")
        dots = "s" in found[1] or (dots and "s" not in (found[2] or ""))
        if found[3] == ")":
            self._dots[-1] = dots
        else:
            self._dots.append(dots)
        return f"({found[0]}"

    def _escape(self) -> str:
        if code := _CODES.match(self._text, self._place):
            self._place = code.end()
            return _alone(chr(int(next(filter(None, code.groups())), 16)), is_literal=True)
        char = self._next()
        if char in _CLASSES:
            return _any_of(f"[\\{char}&&{_PLAIN}]", _CLASSES[char])
        if char in _CONTROLS:
            return _alone(_CONTROLS[char])
        if char in "pP":
            return f"[\\{char}{self._property()}&&{_PLAIN}]"
        if char.isalnum():
            raise self._refused(f"has \\{char}")
        return _alone(char, is_literal=True)

    def _property(self) -> str:
        char = self._next()
        while char.startswith("{") and not char.endswith("}"):
            char += self._next()
        return char

    def _set(self) -> str:
        """A class in brackets, which may have others in it."""
        begin, depth = self._place, 1
        while depth:
            char = self._next()
            if char == "\\":
                self._next()
            depth += (char == "[") - (char == "]" and self._text[begin : self._place - 1] not in ("", "^"))
        inner = self._text[begin : self._place - 1]
        return _any_of(f"[[{inner}]&&{_PLAIN}]", "".join(char for char in _ESCAPES if self._has(inner, char)))

    def _has(self, inner: str, char: str) -> bool:
        """Whether a class has a character, as far as Python reads it as Rust does; else it has not."""
        if re.search(r"(?<!\\)\[|&&|--|~~|\\[pPxuz]", inner):
            return False
        try:
            return re.fullmatch(f"[{inner}]", char) is not None
        except re.error:
            return False

    def _refused(self, what: str) -> InvalidField:
        return InvalidField(f"{self._param}: the expression {quoted(self._text)} {what}", param=self._param)


def _any_of(plain: str, escaped: str) -> str:
    """A character of a class, or one of those that JSON escapes."""
    if not escaped:
        return plain
    letters = "".join(f"\\{_ESCAPES[char]}" if char in '"\\' else _ESCAPES[char] for char in escaped)
    return f"(?:{plain}|\\\\[{letters}])"


def _alone(char: str, *, is_literal: bool = False) -> str:
    """One character; unless it is literal, one that means something in expressions keeps its meaning."""
    if char in _ESCAPES:
        return "\\\\" + ("\\" if char in '"\\' else "") + _ESCAPES[char]
    if char < " ":
        return f"\\\\u{ord(char):04x}"
    if not is_literal:
        return char
    return char if char.isalnum() or char in ' "' or not char.isascii() else f"\\{char}"
