"""The text of an answer for readers that are written as generators.

A reader moves `at` over the text and yields whenever it must wait for more. So it sees the same characters however the
answer is cut into pieces. It may go back to any place that has not been forgotten.
"""

import re
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
# A reader returns what it found. It yields nothing and is sent nothing.
Reader = Generator[None, None, T]

SPACE = " \t\r\n"
_SPACE = re.compile(f"[{SPACE}]*")
_SLACK = 4096


def read_now(reader: Reader[T]) -> T:
    """What a reader finds in a text that has ended."""
    while True:
        try:
            next(reader)
        except StopIteration as end:
            found: T = end.value
            return found


class Lookahead:
    """The text that has come and is not forgotten. Places in it count characters from its beginning."""

    def __init__(self) -> None:
        self.at = 0
        self.ended = False
        # The text from this place on is kept, wherever `at` is; None if it need not be.
        self.kept_from: int | None = None
        self._text = ""
        self._begin = 0

    def append(self, text: str) -> None:
        """More of the text has come."""
        self._text += text

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True

    def forget(self) -> None:
        """Drop the text before `at`, sooner or later: it copies the rest."""
        place = self.at if self.kept_from is None else min(self.at, self.kept_from)
        if place - self._begin > _SLACK:
            self._text = self._text[place - self._begin :]
            self._begin = place

    def since(self, place: int) -> str:
        """The text from a place up to `at`."""
        return self.between(place, self.at)

    def between(self, place: int, end: int) -> str:
        """The text from a place up to another one."""
        return self._text[place - self._begin : end - self._begin]

    def peek(self) -> Reader[str]:
        """The next character, or "" at the end."""
        while self.at - self._begin == len(self._text) and not self.ended:
            yield
        return self._text[self.at - self._begin : self.at - self._begin + 1]

    def take(self, literal: str) -> Reader[bool]:
        """Go past a literal if it comes next. Waits only while it can still come."""
        while True:
            rest = self._text[self.at - self._begin : self.at - self._begin + len(literal)]
            if rest == literal:
                self.at += len(literal)
                return True
            if self.ended or not literal.startswith(rest):
                return False
            yield

    def take_last(self, literal: str) -> Reader[bool]:
        """Go past a literal if it comes next, or past as much of it as comes before the end of the text."""
        if (yield from self.take(literal)):
            return True
        rest = self._text[self.at - self._begin :]
        if self.ended and literal.startswith(rest):
            self.at += len(rest)
            return True
        return False

    def take_here(self, pattern: re.Pattern[str]) -> str:
        """Go past what matches the pattern in the text that has come, possibly nothing, without waiting."""
        match = pattern.match(self._text, self.at - self._begin)
        found = match[0] if match else ""
        self.at += len(found)
        return found

    def take_until(self, literal: str) -> Reader[str | None]:
        """Go past the next such literal; returns the text before it. Without one, go to the end and return None."""
        place = self.at
        while True:
            found = self._text.find(literal, self.at - self._begin)
            if found >= 0:
                self.at = self._begin + found + len(literal)
                return self.between(place, self._begin + found)
            held = 0 if self.ended else len(literal) - 1
            self.at = max(self.at, self._begin + len(self._text) - held)
            if self.ended:
                return None
            yield

    def take_all(self, pattern: re.Pattern[str]) -> Reader[str]:
        """Go past what matches a pattern of the form `[class]*`, in full: up to another character or the end."""
        found = ""
        while (yield from self.peek()) and (more := self.take_here(pattern)):
            found += more
        return found

    def look_all(self, pattern: re.Pattern[str]) -> Reader[str]:
        """What `take_all` would go past, without going past it."""
        while True:
            match = pattern.match(self._text, self.at - self._begin)
            if match and (self.ended or match.end() < len(self._text)):
                return match[0]
            yield

    def take_space(self) -> Reader[str]:
        """Go past whitespace, possibly none."""
        return self.take_all(_SPACE)

    def skip_space(self) -> Reader[str]:
        """Go past whitespace; returns the character after it, or "" at the end."""
        yield from self.take_space()
        return (yield from self.peek())
