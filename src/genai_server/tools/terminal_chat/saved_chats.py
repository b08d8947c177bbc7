"""Chats in files. A file is the body of a request to `/v1/chat/completions`, so that other programs can send it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.chat_history import Conversation, Message
from genai_server.tools.terminal_chat.typed_parameters import PARAMETERS, Value, parse


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
