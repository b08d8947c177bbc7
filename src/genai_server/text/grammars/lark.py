"""Pieces of grammars in llguidance's dialect of Lark: literals, markers, JSON that matches a schema (`fits`), and the
grammars of custom tools within JSON (`in_json`). llguidance is the library that enforces grammars (its documentation:
"Syntax of LLGuidance Grammars").

All grammars describe JSON on one line with the separators ", " and ": ", as chat templates show JSON to models. With
flexible whitespace, a model could write spaces until its token limit.

A custom tool takes a text, which may have to match a Lark grammar. A call carries this text in a JSON string, with a
backslash before quotes, backslashes and line ends. llguidance has no operator that escapes what a grammar matches, so
each literal and each regular expression (`Expression`) of the tool's grammar is rewritten. llguidance's lexer does not
look ahead and takes the longest lexeme. A lexeme for a line of text that may contain escapes could not end before an
escaped line end, because both begin with a backslash. So text that may contain escapes becomes several lexemes: runs of
unescaped characters, and escapes. A terminal that contains escapes becomes a rule.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from genai_server import errors
from genai_server.errors import InvalidField
from genai_server.text.grammars.json_schema import exact

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
    """A part of a regular expression, rewritten so that it matches text as it is escaped inside a JSON string.

    `lexeme` is the part as one expression, and `lark` the part as a Lark expression of several lexemes; None if it has
    no escaped characters. For a character class, `plain` is an expression for its characters that JSON does not escape,
    and `escapes` one for its escapes.
    """

    # The part as an expression for one lexeme.
    lexeme: str
    # The part as a Lark expression; None without escapes.
    lark: str | None = None
    # For a character class: expressions for its plain characters and for its escapes.
    plain: str = ""
    escapes: str = ""


class Expression:
    """Parser that rewrites one regular expression, in the syntax of Rust's `regex` crate, for text inside a JSON
    string.

    `text` is the expression and `flags` are its letters after the closing slash. The constructor and `whole` raise
    InvalidField, naming the field `param`, for syntax that is not supported.
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
        """Parse the entire expression and return it rewritten for text inside a JSON string."""
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
        """Parse a character class such as [a-z] after its opening bracket, and return it rewritten. It may contain
        other classes.
        """
        start, depth = self._position, 1
        while depth:
            char = self._next()
            if char == "\\":
                self._next()
            elif char == "[":
                depth += 1
            elif char == "]" and self._text[start : self._position - 1] not in ("", "^"):
                depth -= 1
        inner = self._text[start : self._position - 1]
        return self._class(f"[[{inner}]&&{_PLAIN}]", "".join(char for char in _ESCAPES if _has(inner, char)))

    def _class(self, plain: str, escaped: str) -> Node:
        """Return the rewritten form of a character class, which matches one character, possibly escaped.

        `plain` is an expression for the characters of the class that JSON does not escape. `escaped` are those that it
        escapes.
        """
        if not escaped:
            return Node(plain)
        letters = "".join(f"\\{_ESCAPES[char]}" if char in '"\\' else _ESCAPES[char] for char in escaped)
        escapes = f"\\\\[{letters}]"
        lark = f"({self._chunk(plain)} | {self._chunk(escapes)})"
        return Node(f"(?:{plain}|{escapes})", lark, plain, escapes)

    def _character(self, char: str, *, is_literal: bool = True) -> Node:
        """Return the rewritten form of one character, which is escaped if JSON escapes it.

        Unless `is_literal`, a character such as "^" keeps its special meaning in regular expressions.
        """
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

    def _refused(self, reason: str) -> InvalidField:
        return InvalidField(self._param, f"cannot be used: the expression {errors.quoted(self._text)} {reason}")


def _has(inner: str, char: str) -> bool:
    """Whether the character `char` is in a character class, of which `inner` is the text between the brackets.

    Also False if Python would parse the class differently from Rust.
    """
    if re.search(r"(?<!\\)\[|&&|--|~~|\\[pPxuz]", inner):
        return False
    try:
        return re.fullmatch(f"[{inner}]", char) is not None
    except re.error:
        return False


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
    """Rewrite the Lark grammar `source` of a custom tool for texts inside a JSON string, between its quotes.

    The returned grammar matches the same texts with JSON's escapes. Raises InvalidField, naming the field `param`, for
    syntax that is not supported.
    """
    try:
        statements = [*_statements(source, param)]
        with_escapes = _with_escapes(statements)
        ignored = {
            part.text for statement in statements if not statement.head for part in statement.parts if part.is_name
        }
        return "\n".join(line for statement in statements for line in statement.rewritten(with_escapes, ignored))
    except (RecursionError, OverflowError):
        raise InvalidField(param, "cannot be used: an expression of the grammar is nested too deeply") from None


@dataclass(frozen=True)
class _Part:
    """A piece of a rule of a custom tool's grammar, rewritten for text inside a JSON string.

    It has two forms: `text` for use within one lexeme, and `in_rule` for use in a rule of several lexemes. `has_escape`
    says that it can match escaped characters, and `is_name` that it is the name of a rule or terminal.
    """

    text: str
    in_rule: str
    has_escape: bool = False
    is_name: bool = False


@dataclass(frozen=True)
class _Statement:
    """A statement of a custom tool's grammar: a rule, a terminal, or an %ignore statement (then `head` is empty).

    `head` is the name that it defines, `parts` are its pieces, and `imported` is the predefined terminal that it
    imports, if any.
    """

    head: str
    parts: list[_Part]
    # The predefined terminal that it imports.
    imported: str = ""

    @property
    def is_terminal(self) -> bool:
        """Whether this statement defines a terminal, whose name begins with a capital letter."""
        return self.head[:1].isupper()

    def rewritten(self, with_escapes: Iterable[str], ignored: Iterable[str]) -> Iterator[str]:
        """Yield the lines of the statement, rewritten for text inside a JSON string.

        `with_escapes` are the names of the terminals that become rules because they can match escaped characters.
        `ignored` are the names of the terminals in %ignore statements, which stay terminals, too.
        """
        expression = "".join(part.text for part in self.parts)
        if self.imported or not self.head:
            yield f"%import common.{self.imported} -> {self.head}" if self.imported else f"%ignore {expression}"
            return
        if self.is_terminal and (self.head not in with_escapes or self.head in ignored):
            yield f"{self.head}: {expression}"
        if self.head in with_escapes or not self.is_terminal:
            head = _rule(self.head) if self.is_terminal else self.head
            named = (
                _rule(part.text) if part.is_name and part.text in with_escapes else part.in_rule for part in self.parts
            )
            yield f"{head}: {''.join(named)}"


def _rule(terminal: str) -> str:
    """Return the name of the rule that replaces the terminal with this name."""
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
    if (common := _TOKEN.match(_COMMON.get(name, ""))) is not None:
        return _Statement(alias, [_part(common, param)])
    if name not in _PLAIN_COMMON:
        raise InvalidField(param, f"cannot be used: common has no supported {errors.quoted(name)}")
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
    """Return the names of the terminals that can match characters that JSON escapes, directly or through other
    terminals.
    """
    terminals = [statement for statement in statements if statement.is_terminal]
    names = {statement.head for statement in terminals if any(part.has_escape for part in statement.parts)}
    while (
        more := {
            statement.head for statement in terminals for part in statement.parts if part.is_name and part.text in names
        }
        - names
    ):
        names |= more
    return names


def _literal(text: str, folded: str, param: str) -> _Part:
    try:
        value: str = json.loads(text)
    except ValueError:
        raise InvalidField(
            param, f"cannot be used: the literal {errors.quoted(text)} has an escape that is not JSON's"
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


# Regular expressions for any text, and for whitespace as the answer parser defines it.
ANYTHING, SPACES = r"(.|\n)*", r"[ \t\r\n]*"
# A regular expression for text up to where a line begins, apart from whitespace.
LINES = rf"({ANYTHING}\n)?{SPACES}"
# A backslash with the escaped character, or a character that ends an expression.
_TO_ESCAPE = re.compile(r"\\.?|[/\n\r\t]", re.DOTALL)
_REGEX_ESCAPES = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
# Schema keyword for a text that matches a Lark grammar, as written by apis/responses/translate.py.
LARK = "x-lark"
# Precedes a nested grammar, given as JSON text; see `extract_text_grammars`. It occurs in no JSON and no literal.
_NESTED = "\0text "
_NESTED_TEXT = re.compile(rf'{_NESTED}("(?:[^"\\]|\\.)*")')
_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def to_text(value: Any, *, ensure_ascii: bool = True) -> str:
    """Return the JSON text of a schema or grammar.

    With `ensure_ascii`, characters beyond ASCII are written as escapes. Raises InvalidField if it is nested too deeply.
    """
    try:
        return json.dumps(value, ensure_ascii=ensure_ascii)
    except RecursionError:
        raise InvalidField(None, "a schema is nested too deeply") from None


def without_forcing(source: str) -> str:
    """Return a Lark grammar with the option `no_forcing`, so that llguidance does not look for text that must follow.

    If a text can only continue and never end, as in `start: /x*/ "x"`, llguidance would look ahead forever while it
    generates an answer. If several grammars are combined, the option of the last grammar applies to all of them.
    """
    return f'{source}\n%llguidance {{"no_forcing": true}}'


def quoted(text: str) -> str:
    """Return the Lark literal that matches exactly this text.

    U+007F is escaped because llguidance refuses it in literals although JSON does not escape it.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def expression(pattern: str) -> str:
    """Return a regular expression in Lark's notation, between slashes, as llguidance's `regex_to_lark` writes it."""
    return f"/{_TO_ESCAPE.sub(_escaped, pattern)}/"


def _escaped(match: re.Match[str]) -> str:
    char = match[0].removeprefix("\\")
    return _REGEX_ESCAPES.get(char, match[0] if char else "")


def marker(text: str, opaque_tokens: Mapping[str, int]) -> str:
    """Return the Lark expression for one marker, such as the opening tag of tool calls.

    This is a token id if the marker is a special token that no literal matches, and otherwise a literal.
    `opaque_tokens` maps the texts of such tokens to their ids.
    """
    return f"<[{opaque_tokens[text]}]>" if text in opaque_tokens else quoted(text)


def spelled(text: str, opaque_tokens: Mapping[str, int]) -> str:
    """Return the Lark expression for exactly this text, in which special tokens are written as token ids.

    `opaque_tokens` maps the texts of special tokens that no literal matches to their ids.
    """
    markers = sorted((token for token in opaque_tokens if token in text), key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, markers))})", text) if markers else [text]
    return " ".join(marker(piece, opaque_tokens) for piece in pieces if piece)


def text_up_to(rule: str, end: str, opaque_tokens: Mapping[str, int], *, without: Iterable[str]) -> str:
    """Return Lark rules for a text that contains none of the texts in `without`, followed by the text `end`.

    The first of the rules gets the name `rule`. `opaque_tokens` maps the texts of special tokens that no literal
    matches to their ids.
    """
    unwanted = "|".join(map(re.escape, without))
    terminal = rule.upper()
    text = f"{terminal}: /{ANYTHING}/ & ~{expression(f'{ANYTHING}({unwanted}){ANYTHING}')}\n"
    if any(token in end for token in opaque_tokens):
        # Whitespace before a token belongs to the text: a lexeme is lost if text can continue past its end.
        return f"{rule}: {terminal} {spelled(end.lstrip(), opaque_tokens)}\n{text}"
    return f"{rule}[lazy]: {terminal} {quoted(end)}\n{text}"


def one_line(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON schema that llguidance enforces exactly, and that makes it write the JSON on one line.

    The options for this stand in the outermost schema, because llguidance reads them only there. Raises InvalidField,
    to which the caller adds the field's name, for what cannot be enforced.
    """
    rewritten, escapes = exact(schema)
    return {**rewritten, "x-guidance": {**_ONE_LINE, "json_allowed_escapes": escapes}}


def fits(schema: Mapping[str, Any]) -> str:
    """Return the Lark expression for JSON that matches the schema of a tool's arguments.

    If the tool is a custom tool whose text must match a Lark grammar (see `lark_of_text`), the expression contains this
    grammar as quoted text, which `extract_text_grammars` later replaces by a reference. Raises InvalidField for a
    schema that cannot be enforced.
    """
    if (source := lark_of_text(schema)) is not None:
        (name,) = schema["properties"]
        head, tail = quoted(f'{{"{name}": "'), quoted('"}')
        return f"{head} {_NESTED}{json.dumps(source)} {tail}"
    return f"%json {to_text(one_line(schema), ensure_ascii=False)}"


def lark_of_text(schema: Mapping[str, Any] | None) -> str | None:
    """Return the Lark grammar that the text of a custom tool must match, from the schema of the tool's arguments.

    Such a schema has one property, a text with the keyword LARK. None for any other schema.
    """
    properties = (schema or {}).get("properties")
    if not isinstance(properties, dict) or len(properties) != 1:
        return None
    (text,) = properties.values()
    source = text.get(LARK) if isinstance(text, dict) and text.keys() == {"type", LARK} else None
    return source if isinstance(source, str) else None


def extract_text_grammars(source: str) -> tuple[str, dict[str, str]]:
    """Replace the Lark grammars of custom tools, which `fits` has written into the Lark rules `source`, by references.

    Returns the rules, and the extracted grammars keyed by the names in the references. They are rewritten for text
    within JSON strings. Raises InvalidField for syntax that is not supported there.
    """
    nested: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        name = f"text_{len(nested)}"
        nested[name] = in_json(json.loads(match[1]), param="tools")
        return f"@{name}"

    return _NESTED_TEXT.sub(name, source), nested


def any_of(alternatives: Iterable[str]) -> str:
    """Return the Lark expression that matches exactly one of the given Lark expressions."""
    return "(" + " | ".join(alternatives) + ")"


def separated(item: str, separator: str, *, several: bool) -> str:
    """Return the Lark expression for one item or, if `several`, for one or more items with the text `separator` between
    them.

    `item` is a Lark expression.
    """
    if not several:
        return item
    return f"{item} ({quoted(separator)} {item})*" if separator else f"{item}+"
