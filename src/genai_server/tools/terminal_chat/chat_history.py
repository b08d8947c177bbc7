"""The conversation so far with the current question, and its file.

A file is the body of a request to `/v1/chat/completions`, so that other programs can send it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypedDict

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.typed_parameters import PARAMETERS, Value, parse


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

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Self:
        """The conversation in these messages: an optional system prompt, then questions and answers in turn.

        A question without an answer may come last. Raises ValueError.
        """
        system, rest = "", list(messages)
        if rest and rest[0]["role"] == "system":
            system = rest.pop(0)["content"]
        for number, message in enumerate(rest):
            expected = "user" if number % 2 == 0 else "assistant"
            if message["role"] != expected:
                raise ValueError(f"a message of the role {expected} must follow, not of {message['role']}")
        made = cls(system)
        for question, answer in zip(rest[::2], rest[1::2], strict=False):
            made.ask(question["content"])
            made.answered(answer["content"])
        if len(rest) % 2:
            made.ask(rest[-1]["content"])
        return made

    def messages(self) -> list[Message]:
        """The messages so far, with the last question if it has no answer yet."""
        found = self._history()
        if self._question is not None and not self._is_answered:
            found.append(Message(role="user", content=self._question))
        return found

    def ask(self, question: str) -> list[Message]:
        """The messages for a new question. It joins the history when it is answered."""
        self._question, self._is_answered = question, False
        return self.messages()

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

    def _history(self) -> list[Message]:
        messages = [Message(role="system", content=self.system)] if self.system else []
        for asked, answered in self._turns:
            messages += [Message(role="user", content=asked), Message(role="assistant", content=answered)]
        return messages


@dataclass(frozen=True)
class SavedChat:
    """The contents of a file."""

    model: str
    conversation: Conversation
    parameters: Mapping[str, Value]


def save(path: Path, chat: SavedChat) -> None:
    """Write a chat; replaces a saved chat and nothing else. Raises ChatFailed."""
    if path.exists():
        try:
            load(path)
        except ChatFailed:
            raise ChatFailed(f"{path} exists and is not a saved chat; choose another name") from None
    body = {"model": chat.model, **chat.parameters, "messages": chat.conversation.messages()}
    try:
        path.write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ChatFailed(f"{path} cannot be written: {_reason(error)}") from None


def load(path: Path) -> SavedChat:
    """Read a chat. Raises ChatFailed."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChatFailed(f"{path} cannot be read: {_reason(error)}") from None
    try:
        messages = [Message(role=str(each["role"]), content=each["content"]) for each in body["messages"]]
        if not all(isinstance(each["content"], str) for each in messages):
            raise TypeError
        model = str(body.get("model", ""))
    except (LookupError, TypeError, AttributeError):
        raise ChatFailed(f'{path} is not a saved chat: it has no "messages" of texts') from None
    parameters = {name: parse(name, str(body[name])) for name in PARAMETERS if name in body}
    try:
        return SavedChat(model, Conversation.of(messages), parameters)
    except ValueError as error:
        raise ChatFailed(f"{path}: {error}") from None


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
