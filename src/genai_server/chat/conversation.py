"""What was said so far, and what is asked now."""

from typing import TypedDict


class Message(TypedDict):
    """A message of a request."""

    role: str
    content: str


class Conversation:
    """Turns of question and answer under a system prompt, which may be empty."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self._turns: list[tuple[str, str]] = []
        self._question: str | None = None
        self._is_answered = False

    def ask(self, question: str) -> list[Message]:
        """The messages to send for a new question, which is part of the history once it is answered."""
        self._question, self._is_answered = question, False
        messages = [Message(role="system", content=self.system)] if self.system else []
        for asked, answered in self._turns:
            messages += [Message(role="user", content=asked), Message(role="assistant", content=answered)]
        return [*messages, Message(role="user", content=question)]

    def answered(self, answer: str) -> None:
        """Take the answer to the last question into the history, be it whole or not; an empty one is none."""
        if self._question is not None and answer:
            self._turns.append((self._question, answer))
            self._is_answered = True

    def ask_again(self) -> list[Message] | None:
        """The messages to send for the last question once more, without the answer it had; None if there is none."""
        if self._question is None:
            return None
        if self._is_answered:
            self._turns.pop()
        return self.ask(self._question)

    def clear(self) -> None:
        """Forget all turns, not the system prompt."""
        self._turns.clear()
        self._question = None
