"""The text of an answer, for readers written as generators.

A reader moves `at` over the text and yields whenever it needs more text. Its result therefore does not depend on how
the answer is split into pieces. It may move back to any position that has not been forgotten.
"""

import re
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
# A reader returns its result. It neither yields nor receives values.
Reader = Generator[None, None, T]

SPACE = " \t\r\n"
_SPACE = re.compile(f"[{SPACE}]*")
_SLACK = 4096


def read_now(reader: Reader[T]) -> T:
    """Run a reader on a complete text and return its result."""
    while True:
        try:
            next(reader)
        except StopIteration as end:
            found: T = end.value
            return found


class Lookahead:
    """The text received and not forgotten. Positions count characters from the beginning of the answer."""

    def __init__(self) -> None:
        self.at = 0
        self.ended = False
        # Whether a result was due to the end of the text: with more text, it could have been another one.
        self.met_end = False
        # The text from this position on is kept regardless of `at`; None if not needed.
        self.kept_from: int | None = None
        self._text = ""
        self._begin = 0

    def append(self, text: str) -> None:
        """Add text."""
        self._text += text

    def end(self) -> None:
        """Mark the text as complete."""
        self.ended = True

    def forget(self) -> None:
        """Allow the text before `at` to be dropped. It is dropped in batches because the rest is copied."""
        place = self.at if self.kept_from is None else min(self.at, self.kept_from)
        if place - self._begin > _SLACK:
            self._text = self._text[place - self._begin :]
            self._begin = place

    def since(self, place: int) -> str:
        """The text from a position up to `at`."""
        return self.between(place, self.at)

    def between(self, place: int, end: int) -> str:
        """The text between two positions."""
        return self._text[place - self._begin : end - self._begin]

    @property
    def received_to(self) -> int:
        """The position after the text received so far."""
        return self._begin + len(self._text)

    def find(self, literal: str, place: int) -> int | None:
        """The position of a literal in the received text, from this position on."""
        found = self._text.find(literal, place - self._begin)
        return None if found < 0 else self._begin + found

    def peek(self) -> Reader[str]:
        """The next character, or "" at the end."""
        while self.at - self._begin == len(self._text):
            if self.ended:
                self.met_end = True
                break
            yield
        return self._text[self.at - self._begin : self.at - self._begin + 1]

    def take(self, literal: str) -> Reader[bool]:
        """Consume a literal if it comes next. Waits only while that is possible."""
        while True:
            rest = self._text[self.at - self._begin : self.at - self._begin + len(literal)]
            if rest == literal:
                self.at += len(literal)
                return True
            if not literal.startswith(rest):
                return False
            if self.ended:
                self.met_end = True
                return False
            yield

    def take_any(self, *literals: str) -> Reader[str]:
        """Consume the first of these literals that comes next; returns it, or "" if none does."""
        for literal in literals:
            if (yield from self.take(literal)):
                return literal
        return ""

    def take_last(self, literal: str) -> Reader[bool]:
        """Consume a literal if it comes next, or its beginning at the end of the text."""
        if (yield from self.take(literal)):
            return True
        rest = self._text[self.at - self._begin :]
        if self.ended and literal.startswith(rest):
            self.at += len(rest)
            return True
        return False

    def take_here(self, pattern: re.Pattern[str]) -> str:
        """Consume what matches the pattern in the received text, possibly nothing, without waiting."""
        match = pattern.match(self._text, self.at - self._begin)
        found = match[0] if match else ""
        self.at += len(found)
        return found

    def take_until(self, literal: str) -> Reader[str | None]:
        """Consume a text and the literal after it; returns the text. Without the literal, consume all: None."""
        place = self.at
        while True:
            found = self._text.find(literal, self.at - self._begin)
            if found >= 0:
                self.at = self._begin + found + len(literal)
                return self.between(place, self._begin + found)
            held = 0 if self.ended else len(literal) - 1
            self.at = max(self.at, self._begin + len(self._text) - held)
            if self.ended:
                self.met_end = True
                return None
            yield

    def take_all(self, pattern: re.Pattern[str]) -> Reader[str]:
        """Consume all characters that match a pattern of the form `[class]*`, waiting for another one or the end."""
        found = ""
        while (yield from self.peek()) and (more := self.take_here(pattern)):
            found += more
        return found

    def look_all(self, pattern: re.Pattern[str]) -> Reader[str]:
        """Like `take_all`, but without consuming the text."""
        while True:
            match = pattern.match(self._text, self.at - self._begin)
            if match and match.end() < len(self._text):
                return match[0]
            if match and self.ended:
                self.met_end = True
                return match[0]
            yield

    def take_space(self) -> Reader[str]:
        """Consume whitespace, if any."""
        return self.take_all(_SPACE)

    def skip_space(self) -> Reader[str]:
        """Consume whitespace; returns the character after it, or "" at the end."""
        yield from self.take_space()
        return (yield from self.peek())
