"""The conversation up to now, and the current question."""

from typing import TypedDict


class Message(TypedDict):
    """A message of a request."""

    role: str
    content: str


class Conversation:
    """Turns of questions and answers under a system prompt, which may be empty."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self._turns: list[tuple[str, str]] = []
        self._question: str | None = None
        self._is_answered = False

    def ask(self, question: str) -> list[Message]:
        """The messages for a new question. It joins the history when it is answered."""
        self._question, self._is_answered = question, False
        messages = [Message(role="system", content=self.system)] if self.system else []
        for asked, answered in self._turns:
            messages += [Message(role="user", content=asked), Message(role="assistant", content=answered)]
        return [*messages, Message(role="user", content=question)]

    def answered(self, answer: str) -> None:
        """Add the answer to the last question to the history, complete or not. An empty answer is ignored."""
        if self._question is not None and answer:
            self._turns.append((self._question, answer))
            self._is_answered = True

    def ask_again(self) -> list[Message] | None:
        """The messages for the last question, without its answer; None if there was no question."""
        if self._question is None:
            return None
        if self._is_answered:
            self._turns.pop()
        return self.ask(self._question)

    def clear(self) -> None:
        """Forget all turns but keep the system prompt."""
        self._turns.clear()
        self._question = None
