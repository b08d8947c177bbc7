"""Conversations as agents and other servers write them, described in shapes.toml.

Each text has a word of its own, which its prompt must have.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PIXEL}"}}
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FUNCTION = {"name": "get_weather", "description": "Looks.", "parameters": _PARAMETERS}


@dataclass(frozen=True)
class Shape:
    """A conversation in messages of chat completions, and the words that its prompt must have."""

    name: str
    messages: Sequence[Json]
    words: Sequence[str]

    @property
    def continues(self) -> bool:
        """Whether the answer continues the last message."""
        return bool(self.messages[-1]["role"] == "assistant")

    @property
    def has_calls(self) -> bool:
        """Whether tools are called."""
        return any("tool_calls" in message for message in self.messages)

    def body(self, *, has_tools: bool) -> Json:
        """A body of /v1/chat/completions."""
        body: Json = {"messages": self.messages}
        if has_tools:
            body["tools"] = [{"type": "function", "function": _FUNCTION}]
        if self.continues:
            body["chat_template_kwargs"] = {"continue_final_message": True}
        return body


class _Writer:
    """Writes the messages of one conversation. `words` has the word that each text of it has of its own."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._num_calls = 0
        # The ids of the last calls, to which results belong.
        self._ids: list[str] = []

    def message(self, word: str) -> Json:
        """The message that a word of the table stands for."""
        kind, *parts = word.split("+")
        match kind:
            case "system" | "developer":
                return {"role": kind, "content": self._text("Be brief")}
            case "user":
                return {"role": "user", "content": self._text("What about")}
            case "picture":
                return {"role": "user", "content": [{"type": "text", "text": self._text("What about")}, _IMAGE]}
            case "answer":
                answer = {"role": "assistant", "content": self._text("It is")}
                return answer | ({"reasoning_content": self._text("I think of")} if "thought" in parts else {})
            case "nothing":
                return {"role": "assistant", "content": ""}
            case "lost" | "gone":
                return self._result(f"call_{kind}")
        if kind.startswith("result"):
            return self._result(self._ids[int(kind[6:] or 1) - 1])
        calls = [self._call(parts) for _ in range(int(kind[5:] or 1))]
        self._ids = [call["id"] for call in calls]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        if "thought" in parts:
            message["reasoning_content"] = self._text("I look at")
        if "text" in parts:
            message["content"] = self._text("Let me see")
        return message

    def _text(self, beginning: str) -> str:
        """A text that ends in a new word."""
        self.words.append("word" + "".join("qwrtzpsdfg"[int(digit)] for digit in f"{len(self.words):03}"))
        return f"{beginning} {self.words[-1]}."

    def _result(self, id: str) -> Json:
        return {"role": "tool", "tool_call_id": id, "content": self._text("21 degrees in")}

    def _call(self, parts: Sequence[str]) -> Json:
        self._num_calls += 1
        given = dict(part.split("=", 1) for part in parts if "=" in part)
        arguments = given["arguments"] if "arguments" in given else json.dumps({"city": self._text("near")})
        function = {"name": _FUNCTION["name"], "arguments": arguments}
        return {"id": given.get("id", f"call_{self._num_calls:024}"), "type": "function", "function": function}


def shapes() -> list[Shape]:
    """All conversations."""
    described = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    found = []
    for name, words in described.items():
        writer = _Writer()
        messages = [writer.message(word) for word in (words.split() if isinstance(words, str) else words)]
        found.append(Shape(name, messages, writer.words))
    return found
