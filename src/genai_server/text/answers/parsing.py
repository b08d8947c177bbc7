"""Tools for the parsers of answers: the buffered text of an answer (`Lookahead`), and strict readers of JSON and Python
literals.

A reader is a parser written as a generator. It moves the position `at` over the text and yields whenever it needs more
text; its return value is its result. How the answer is split into pieces therefore does not change the result. A reader
may move back to any position that has not been forgotten.

The JSON reader (`read_value`, RFC 8259) has no depth limit. Python literals are read because some models write the
arguments of tool calls so; `to_json` converts them to JSON.
"""

import ast
import json
import re
import warnings
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
# A reader returns its result. It neither yields nor receives values.
Reader = Generator[None, None, T]

SPACE = " \t\r\n"
_SPACE = re.compile(f"[{SPACE}]*")
_SLACK = 4096


def read_complete(reader: Reader[T]) -> T:
    """Run a reader, a generator that yields when it needs more text, to its end, and return its result.

    The text of the reader must be complete (see `Lookahead.end`), because no more text is added.
    """
    while True:
        try:
            next(reader)
        except StopIteration as end:
            result: T = end.value
            return result


class Lookahead:
    """The text of one answer as it arrives in pieces, with the position `at` up to which readers have consumed it.

    Readers are generators that yield when they need more text. All positions count characters from the beginning of the
    answer. Text before `at` may be forgotten to save memory, but not from the position `kept_from` on (None if nothing
    else is needed). `ended` says that the answer has ended. `met_end` is set when a result is due to the end of the
    answer: with more text, it could have been another one.
    """

    def __init__(self) -> None:
        self.at = 0
        self.ended = False
        # Whether a result was due to the end of the text: with more text, it could have been another one.
        self.met_end = False
        # The text from this position on is kept regardless of `at`; None if not needed.
        self.kept_from: int | None = None
        self._text = ""
        self._offset = 0

    def append(self, text: str) -> None:
        """Append the next piece of the answer's text."""
        self._text += text

    def end(self) -> None:
        """Mark the answer as complete: no more pieces follow."""
        self.ended = True

    def forget(self) -> None:
        """Drop the text that is no longer needed, once it is long enough: all text before `at` and before `kept_from`.

        Text is dropped in pieces of some thousand characters, because the remaining text is copied each time.
        """
        start = self.at if self.kept_from is None else min(self.at, self.kept_from)
        if start - self._offset > _SLACK:
            self._text = self._text[start - self._offset :]
            self._offset = start

    def since(self, start: int) -> str:
        """Return the text from the position `start` up to the current position `at`."""
        return self.between(start, self.at)

    def between(self, start: int, end: int) -> str:
        """Return the text from the position `start` up to the position `end`."""
        return self._text[start - self._offset : end - self._offset]

    @property
    def received_to(self) -> int:
        """The position after the last character received so far."""
        return self._offset + len(self._text)

    def find(self, literal: str, start: int) -> int | None:
        """Return the first position of the text `literal` at or after the position `start`; None if it has not been
        received.
        """
        index = self._text.find(literal, start - self._offset)
        return None if index < 0 else self._offset + index

    def peek(self) -> Reader[str]:
        """Look at the next character without consuming it.

        Result of this generator: the character, or "" at the end of the answer. It yields until the character or the
        end has arrived.
        """
        while self.at - self._offset == len(self._text):
            if self.ended:
                self.met_end = True
                break
            yield
        return self._text[self.at - self._offset : self.at - self._offset + 1]

    def take(self, literal: str) -> Reader[bool]:
        """Consume the text `literal` if it comes next.

        Result of this generator: whether it came next. It yields while the received text is only a beginning of the
        literal.
        """
        while True:
            received = self._text[self.at - self._offset : self.at - self._offset + len(literal)]
            if received == literal:
                self.at += len(literal)
                return True
            if not literal.startswith(received):
                return False
            if self.ended:
                self.met_end = True
                return False
            yield

    def take_any(self, *literals: str) -> Reader[str]:
        """Consume the first of several texts that comes next. They are tried in the given order.

        Result of this generator, which yields while it needs more text: the consumed text, or "" if none of them comes
        next.
        """
        for literal in literals:
            if (yield from self.take(literal)):
                return literal
        return ""

    def take_last(self, literal: str) -> Reader[bool]:
        """Consume the text `literal`, or only a beginning of it if the answer ends within it.

        Result of this generator, which yields while it needs more text: whether the literal, or its beginning, came
        next.
        """
        if (yield from self.take(literal)):
            return True
        received = self._text[self.at - self._offset :]
        if self.ended and literal.startswith(received):
            self.at += len(received)
            return True
        return False

    def take_here(self, pattern: re.Pattern[str]) -> str:
        """Consume and return the text at the current position that `pattern` matches, "" if it matches nothing.

        Only text that has been received so far is searched, without waiting for more.
        """
        match = pattern.match(self._text, self.at - self._offset)
        text = match[0] if match else ""
        self.at += len(text)
        return text

    def take_until(self, literal: str) -> Reader[str | None]:
        """Consume the text up to and including the text `literal`.

        Result of this generator, which yields while it needs more text: the text before the literal. If the answer ends
        without the literal, all text is consumed and the result is None.
        """
        start = self.at
        while True:
            index = self._text.find(literal, self.at - self._offset)
            if index >= 0:
                self.at = self._offset + index + len(literal)
                return self.between(start, self._offset + index)
            num_held = 0 if self.ended else len(literal) - 1
            self.at = max(self.at, self._offset + len(self._text) - num_held)
            if self.ended:
                self.met_end = True
                return None
            yield

    def take_all(self, pattern: re.Pattern[str]) -> Reader[str]:
        """Consume all next characters that match `pattern`, which must have the form `[class]*`.

        Result of this generator: the consumed text, possibly "". It yields until a character that does not match, or
        the end of the answer, has arrived.
        """
        text = ""
        while (yield from self.peek()) and (more := self.take_here(pattern)):
            text += more
        return text

    def peek_all(self, pattern: re.Pattern[str]) -> Reader[str]:
        """Look at all next characters that match `pattern`, of the form `[class]*`, without consuming them.

        Result of this generator: the matching text, possibly "". It yields until a character that does not match, or
        the end of the answer, has arrived.
        """
        while True:
            match = pattern.match(self._text, self.at - self._offset)
            if match and match.end() < len(self._text):
                return match[0]
            if match and self.ended:
                self.met_end = True
                return match[0]
            yield

    def take_space(self) -> Reader[str]:
        """Consume whitespace. Result of this generator, which yields while it needs more text: the whitespace, possibly
        "".
        """
        return self.take_all(_SPACE)

    def skip_space(self) -> Reader[str]:
        """Consume whitespace and look at the character after it.

        Result of this generator, which yields while it needs more text: this character, which is not consumed, or "" at
        the end of the answer.
        """
        yield from self.take_space()
        return (yield from self.peek())


# Surrogates are invalid in UTF-8.
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*')
_HEX = re.compile(r"[0-9a-fA-F]")
_WORD = re.compile(r"[-+.0-9A-Za-z_]*")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def read_value(text: Lookahead) -> Reader[bool]:
    """Read one JSON value, of any type and depth, at the current position of `text`.

    Result of this generator, which yields while it needs more text: whether the value is valid JSON. Afterwards
    `text.at` is after the value or, if it is invalid, at the first invalid character or the end of the text.
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
    """Whether a text is one valid JSON value, possibly surrounded by whitespace."""
    text = Lookahead()
    text.append(value)
    text.end()
    return read_complete(read_value(text)) and not read_complete(text.skip_space())


def read_string(text: Lookahead) -> Reader[bool]:
    """Read a JSON string with its quotes at the current position of `text`.

    Result of this generator, which yields while it needs more text: whether the string is valid. Afterwards `text.at`
    is after the string or, if it is invalid, at the first invalid character or the end of the text.
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
    """Consume optional whitespace and a colon. Result of this generator: whether there was a colon."""
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
    """Read a JSON string, a number, `true`, `false` or `null`. Result of this generator: whether it is valid.

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
    """Read the text of a Python literal, such as the value of a keyword argument, up to a comma or closing parenthesis.

    Result of this generator, which yields while it needs more text: the literal's text, without the comma or
    parenthesis; None if neither follows. The text is not checked to be a valid literal; `to_json` does this.
    """
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
    """Convert the text of a Python literal to JSON text. Returns None if it is invalid or has no equivalent in JSON.

    Text that is already JSON is returned without surrounding whitespace. The words `true`, `false` and `null` are also
    accepted inside Python literals.
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
    """Read a Python string that is delimited by the quote character `quote`, once or three times, at the current
    position.

    Result of this generator, which yields while it needs more text: whether the string is complete.
    """
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
