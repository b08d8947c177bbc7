"""The buffered text of an answer, for readers (parsers written as generators).

A reader moves the position `at` over the text and yields whenever it needs more text. Its result therefore does not
depend on how the answer is split into pieces. A reader may move back to any position that has not been forgotten.
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
    """Run a reader on a text that is complete, and return the reader's result."""
    while True:
        try:
            next(reader)
        except StopIteration as end:
            result: T = end.value
            return result


class Lookahead:
    """The received text of an answer, except what has been forgotten.

    All positions count characters from the beginning of the answer.
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
        """Append the next piece of the answer."""
        self._text += text

    def end(self) -> None:
        """Mark the text as complete: no more pieces follow."""
        self.ended = True

    def forget(self) -> None:
        """Drop the text before `at`, except text from the position `kept_from` on, if enough has gathered.

        The text is dropped in large pieces, because each time the remaining text is copied.
        """
        start = self.at if self.kept_from is None else min(self.at, self.kept_from)
        if start - self._offset > _SLACK:
            self._text = self._text[start - self._offset :]
            self._offset = start

    def since(self, start: int) -> str:
        """Return the text from the position `start` up to `at`."""
        return self.between(start, self.at)

    def between(self, start: int, end: int) -> str:
        """Return the text from the position `start` up to the position `end`."""
        return self._text[start - self._offset : end - self._offset]

    @property
    def received_to(self) -> int:
        """The position after the text received so far."""
        return self._offset + len(self._text)

    def find(self, literal: str, start: int) -> int | None:
        """Return the first position of a literal in the received text from `start` on, or None."""
        index = self._text.find(literal, start - self._offset)
        return None if index < 0 else self._offset + index

    def peek(self) -> Reader[str]:
        """Return the next character without consuming it, or "" at the end of the answer.

        Waits for more text if needed.
        """
        while self.at - self._offset == len(self._text):
            if self.ended:
                self.met_end = True
                break
            yield
        return self._text[self.at - self._offset : self.at - self._offset + 1]

    def take(self, literal: str) -> Reader[bool]:
        """Consume a literal if it comes next, and return whether it did.

        Waits for more text while the received text is only a beginning of the literal.
        """
        while True:
            rest = self._text[self.at - self._offset : self.at - self._offset + len(literal)]
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
        """Try literals in the given order and consume the first that comes next.

        Returns that literal, or "" if none does.
        """
        for literal in literals:
            if (yield from self.take(literal)):
                return literal
        return ""

    def take_last(self, literal: str) -> Reader[bool]:
        """Consume a literal, or at the end of the answer a beginning of the literal. Returns whether anything was
        consumed.
        """
        if (yield from self.take(literal)):
            return True
        rest = self._text[self.at - self._offset :]
        if self.ended and literal.startswith(rest):
            self.at += len(rest)
            return True
        return False

    def take_here(self, pattern: re.Pattern[str]) -> str:
        """Consume and return what a pattern matches in the text received so far, possibly "".

        Does not wait for more text.
        """
        match = pattern.match(self._text, self.at - self._offset)
        taken = match[0] if match else ""
        self.at += len(taken)
        return taken

    def take_until(self, literal: str) -> Reader[str | None]:
        """Consume the text up to a literal, and the literal, and return the text before the literal.

        Returns None if the answer ends without the literal; all text is then consumed.
        """
        start = self.at
        while True:
            index = self._text.find(literal, self.at - self._offset)
            if index >= 0:
                self.at = self._offset + index + len(literal)
                return self.between(start, self._offset + index)
            held = 0 if self.ended else len(literal) - 1
            self.at = max(self.at, self._offset + len(self._text) - held)
            if self.ended:
                self.met_end = True
                return None
            yield

    def take_all(self, pattern: re.Pattern[str]) -> Reader[str]:
        """Consume and return all characters that a pattern of the form `[class]*` matches.

        Waits until a character that does not match, or the end of the answer, has arrived.
        """
        taken = ""
        while (yield from self.peek()) and (more := self.take_here(pattern)):
            taken += more
        return taken

    def peek_all(self, pattern: re.Pattern[str]) -> Reader[str]:
        """Return what `take_all` would return, but without consuming the text."""
        while True:
            match = pattern.match(self._text, self.at - self._offset)
            if match and match.end() < len(self._text):
                return match[0]
            if match and self.ended:
                self.met_end = True
                return match[0]
            yield

    def take_space(self) -> Reader[str]:
        """Consume and return whitespace, if any."""
        return self.take_all(_SPACE)

    def skip_space(self) -> Reader[str]:
        """Consume whitespace and return the character after the whitespace (not consumed), or "" at the end of the
        answer.
        """
        yield from self.take_space()
        return (yield from self.peek())
