"""Rewrites the Lark grammar of a custom tool so that it matches the tool's text inside a JSON string.

A tool call carries the text in a JSON string, with a backslash before quotes, backslashes and line ends. llguidance has
no operator that escapes what a grammar matches, so each literal and each regular expression of the grammar is
rewritten.

llguidance's lexer does not look ahead and takes the longest lexeme. A lexeme for a line of text that may contain
escapes could not end before an escaped line end, because both begin with a backslash. So text that may contain escapes
becomes several lexemes: runs of unescaped characters, and escapes. A terminal that contains escapes becomes a rule.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from genai_server.errors import InvalidField, quoted
from genai_server.text.grammars.expression_in_json import Expression

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
# Lark's predefined terminals that contain escaped characters.
_COMMON = {
    "CR": r"/\r/",
    "LF": r"/\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "WS": r"/[ \t\f\r\n]+/",
    "WS_INLINE": r"/[ \t]+/",
    "ESCAPED_STRING": r'/"([^"\\\n]|\\[^\n])*"/',
}
# The others, which llguidance has itself.
_PLAIN_COMMON = frozenset(
    """
    CNAME DECIMAL DIGIT FLOAT HEXDIGIT INT LCASE_LETTER LETTER NUMBER SIGNED_FLOAT SIGNED_INT SIGNED_NUMBER UCASE_LETTER
    WORD
    """.split()  # noqa: SIM905
)


def in_json(source: str, *, param: str) -> str:
    """Return a Lark grammar for the texts that `source` matches, as they appear between the quotes of a JSON string.

    Raises InvalidField, naming `param`, for syntax that is not supported.
    """
    try:
        statements = [*_statements(source, param)]
        with_escapes = _with_escapes(statements)
        ignored = {part.text for one in statements if not one.head for part in one.parts if part.is_name}
        return "\n".join(line for one in statements for line in one.rewritten(with_escapes, ignored))
    except (RecursionError, OverflowError):
        raise InvalidField(param, "cannot be used: an expression of the grammar is nested too deeply") from None


@dataclass(frozen=True)
class _Part:
    """A piece of a rule in two forms: `text` for use within one lexeme, `in_rule` for use in a rule of several
    lexemes.
    """

    text: str
    in_rule: str
    has_escape: bool = False
    is_name: bool = False


@dataclass(frozen=True)
class _Statement:
    """A rule or terminal of the grammar, or an %ignore statement (with an empty head)."""

    head: str
    parts: list[_Part]
    # The predefined terminal that it imports.
    imported: str = ""

    @property
    def is_terminal(self) -> bool:
        """Whether this statement defines a terminal."""
        return self.head[:1].isupper()

    def rewritten(self, with_escapes: Iterable[str], ignored: Iterable[str]) -> Iterator[str]:
        """Yield the lines of the rewritten statement.

        `with_escapes` are the names of terminals that become rules, `ignored` the names of terminals in %ignore
        statements.
        """
        whole = "".join(part.text for part in self.parts)
        if self.imported or not self.head:
            yield f"%import common.{self.imported} -> {self.head}" if self.imported else f"%ignore {whole}"
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
    """Return the name of the rule that replaces a terminal."""
    return f"text_of_{terminal.lower()}"


def _statements(source: str, param: str) -> Iterator[_Statement]:
    current: _Statement | None = None
    for token in _TOKEN.finditer(source):
        if token["refused"] is not None:
            raise InvalidField(
                param,
                "cannot be used: the grammar of a custom tool may have literals, expressions, %import common and "
                "%ignore",
                given=token[0].strip(),
            )
        if token["import"] is not None or token["ignore"] is not None or token["head"] is not None:
            if current is not None:
                yield current
            current = _begun(token, param)
        elif token["comment"] is None:
            if current is None and token[0].strip():
                raise InvalidField(param, "cannot be used: the grammar does not begin with a rule")
            if current is not None:
                current.parts.append(_part(token, param))
    if current is not None:
        yield current


def _begun(token: re.Match[str], param: str) -> _Statement:
    if token["import"] is None:
        return _Statement(token["head"] or "", [])
    name, alias = token["import"], token["alias"] or token["import"]
    if (known := _TOKEN.match(_COMMON.get(name, ""))) is not None:
        return _Statement(alias, [_part(known, param)])
    if name not in _PLAIN_COMMON:
        raise InvalidField(param, f"cannot be used: common has no supported {quoted(name)}")
    return _Statement(alias, [], imported=name)


def _part(token: re.Match[str], param: str) -> _Part:
    if token["string"] is not None:
        return _literal(token["string"], token["folded"], param)
    if token["expression"] is not None:
        flags = token["flags"]
        node = Expression(token["expression"], flags, param).whole()
        text = f"/{node.lexeme}/{flags}"
        return _Part(text, text if node.lark is None else f"({node.lark})", node.lark is not None)
    return _Part(token[0], token[0], is_name=token["name"] is not None)


def _with_escapes(statements: list[_Statement]) -> set[str]:
    """Return the names of the terminals that contain escapes, directly or through other terminals."""
    terminals = [one for one in statements if one.is_terminal]
    names = {one.head for one in terminals if any(part.has_escape for part in one.parts)}
    while more := {one.head for one in terminals for part in one.parts if part.is_name and part.text in names} - names:
        names |= more
    return names


def _literal(text: str, folded: str, param: str) -> _Part:
    try:
        value: str = json.loads(text)
    except ValueError:
        raise InvalidField(
            param, f"cannot be used: the literal {quoted(text)} has an escape that is not JSON's"
        ) from None
    written = json.dumps(value, ensure_ascii=False)[1:-1]
    if written == value and "\x7f" not in value:
        return _Part(text + folded, text + folded)
    pieces = [piece for piece in re.split(r"(\\u[0-9a-f]{4}|\\.)", written) if piece]
    # An escape is case-sensitive: another letter would be another character.
    alternatives = [_text(piece) + ("" if piece.startswith("\\") else folded) for piece in pieces]
    return _Part(_text(written), f"({' '.join(alternatives)})", has_escape=True)


def _text(written: str) -> str:
    return json.dumps(written, ensure_ascii=False).replace("\x7f", "\\u007f")
