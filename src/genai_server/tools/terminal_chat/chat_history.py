"""The conversation of a terminal chat (`Conversation`), and the files in which it is saved (`save`, `load`).

A file is the body of a request to `/v1/chat/completions`, so that other programs can send it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, Self, TypedDict

import msgspec

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.user_input import PARAMETERS, Value, parse


class ImageUrl(TypedDict):
    """The image of a message's content part in OpenAI's format; here its URL is always a data URL."""

    url: str


class Part(TypedDict):
    """A content part of a chat message in OpenAI's format: a text or an image."""

    type: Literal["text", "image_url"]
    text: NotRequired[str]
    image_url: NotRequired[ImageUrl]


class Message(TypedDict):
    """A message of a chat request in OpenAI's format: the role of its author (such as user or assistant), its content,
    and the tool calls of an answer or the id of the call to which a tool's result belongs.
    """

    role: str
    content: str | list[Part] | None
    # Of an answer that calls tools, and of the result of a call.
    tool_calls: NotRequired[list[Any]]
    tool_call_id: NotRequired[str]


class Conversation:
    """The questions and answers of a terminal chat in turn, after a system prompt, which may be empty. The last
    question may have no answer yet.
    """

    def __init__(self, system: str = "") -> None:
        self.system = system
        # The last one may be a question without an answer.
        self._turns: list[Message] = []

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Self:
        """Return a conversation that consists of `messages`: an optional system prompt, then questions and answers in
        turn. The last question may have no answer.

        Raises ValueError for any other order.
        """
        conversation = cls()
        conversation._turns = list(messages)
        if messages and messages[0]["role"] == "system":
            system = conversation._turns.pop(0)["content"]
            if not isinstance(system, str):
                raise ValueError("the system prompt must be a text")
            conversation.system = system
        last: Message | None = None
        for message in conversation._turns:
            expected = _following(last)
            if message["role"] not in expected:
                raise ValueError(f"a message of the role {expected[0]} must follow, not of {message['role']}")
            last = message
        return conversation

    def messages(self) -> list[Message]:
        """Return the messages so far, including the last question if it has no answer yet."""
        return [*([Message(role="system", content=self.system)] if self.system else []), *self._turns]

    def ask(self, question: str, images: Sequence[str] = ()) -> list[Message]:
        """Add a question with images (data URLs), and return all messages of the conversation, to be sent to the model.
        If the previous question has no answer, it is removed.

        Images come first in the message, so that the prompts of several questions about the same images have the same
        beginning.
        """
        if self._turns and not _is_answer(self._turns[-1]):
            self.ask_again()
            self._turns.pop()
        parts = [Part(type="image_url", image_url=ImageUrl(url=url)) for url in images]
        content = [*parts, Part(type="text", text=question)] if parts else question
        self._turns.append(Message(role="user", content=content))
        return self.messages()

    def answered(self, answer: str, calls: Sequence[Message] = ()) -> None:
        """Add the model's answer to the last question, complete or interrupted. `calls` are the messages with tool
        calls and their results that preceded it. An empty answer is ignored.
        """
        if answer:
            self._turns += calls
            self._turns.append(Message(role="assistant", content=answer))

    def ask_again(self) -> list[Message] | None:
        """Remove the answer to the last question, and return the messages up to that question, to be sent once more;
        None if there was no question.
        """
        if not self._turns:
            return None
        while self._turns[-1]["role"] != "user":
            self._turns.pop()
        return self.messages()

    def clear(self) -> None:
        """Remove all questions and answers, but keep the system prompt."""
        self._turns.clear()


def _is_answer(message: Message) -> bool:
    """Whether a message is the final answer to a question, and not one that calls tools."""
    return message["role"] == "assistant" and not message.get("tool_calls")


def _following(last: Message | None) -> tuple[str, ...]:
    """Return the roles (such as user or assistant) that the next message of a conversation may have, the most common
    one first. `last` is the last message so far; None at the beginning.
    """
    if last is None or _is_answer(last):
        return ("user",)
    if last["role"] == "user":
        return ("assistant",)
    return ("tool",) if last["role"] == "assistant" else ("assistant", "tool")


@dataclass(frozen=True)
class SavedChat:
    """What a file with a saved chat contains: the model's name, the conversation, and the fields of requests that the
    user has set, such as temperature.
    """

    model: str
    conversation: Conversation
    parameters: Mapping[str, Value]


class _File(msgspec.Struct):
    """The fields by which a file is recognized as a saved chat, for parsing its JSON."""

    messages: list[Message]
    model: str = ""


def save(path: Path, chat: SavedChat) -> None:
    """Write a chat to a JSON file; a saved chat with this name is replaced. Raises ChatFailed if the file cannot be
    written, or if it exists and is not a saved chat.
    """
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
    """Read a chat from a JSON file. Raises ChatFailed if the file cannot be read or is not a saved chat."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ChatFailed(f"{path} cannot be read: {_reason(error)}") from None
    except ValueError:
        raise ChatFailed(f"{path} is not a saved chat: it is not JSON") from None
    try:
        saved = msgspec.convert(body, _File)
    except msgspec.ValidationError:
        raise ChatFailed(f'{path} is not a saved chat: it has no "messages" of texts and images') from None
    parameters = {name: parse(name, str(body[name])) for name in PARAMETERS if name in body}
    try:
        return SavedChat(saved.model, Conversation.of(saved.messages), parameters)
    except ValueError as error:
        raise ChatFailed(f"{path}: {error}") from None


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
