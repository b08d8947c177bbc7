"""The output items of a running response, and the events of each
(https://platform.openai.com/docs/api-reference/responses-streaming).
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from genai_server.answer_parts import ScoredToken
from genai_server.openai_api import response_items as items
from genai_server.openai_api.chat_completion import logprobs
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.openai_api.schemas.response_items import Status

# The name of an event without "response." before it, and what it tells beside the place.
Told = tuple[str, JsonObject]


class OutputItem(ABC):
    """One item, whose text grows piece by piece."""

    def __init__(self, prefix: str) -> None:
        self.id = items.new_id(prefix)
        self.status: Status = "in_progress"
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """Its text up to now."""
        return "".join(self._texts)

    @property
    def is_shown(self) -> bool:
        """Whether the response has the item."""
        return True

    @abstractmethod
    def to_json(self) -> JsonObject:
        """The item as it is now."""

    def opening(self) -> Iterator[Told]:
        """The events that open it."""
        yield "output_item.added", {"item": self.to_json()}

    @abstractmethod
    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[Told]:
        """The events of more text; `tokens` make that text, if log probabilities are wanted."""

    def closing(self) -> Iterator[Told]:
        """The events that close it."""
        yield "output_item.done", {"item": self.to_json()}


class FunctionCall(OutputItem):
    """A tool call of the model; its text is the arguments."""

    def __init__(self, call_id: str, name: str, namespace: str | None = None) -> None:
        super().__init__("fc")
        self._call_id = call_id
        self._name = name
        self._namespace = namespace

    def to_json(self) -> JsonObject:
        return items.function_call(self._call_id, self._name, self.text, self.id, self.status, self._namespace)

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[Told]:
        self._texts.append(text)
        yield "function_call_arguments.delta", {"delta": text}

    def closing(self) -> Iterator[Told]:
        yield "function_call_arguments.done", {"arguments": self.text}
        yield from super().closing()


class CustomCall(OutputItem):
    """A call of a custom tool. The model writes it as a function's, whose one argument is the text."""

    def __init__(self, call_id: str, name: str) -> None:
        super().__init__("ctc")
        self._call_id = call_id
        self._name = name
        # How much of the text has been told.
        self._num_told = 0

    def to_json(self) -> JsonObject:
        return items.custom_tool_call(self._call_id, self._name, given_input(self.text), self.id)

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[Told]:
        self._texts.append(text)
        yield from self._news(given_input(self.text, is_whole=False))

    def closing(self) -> Iterator[Told]:
        whole = given_input(self.text)
        yield from self._news(whole)
        yield "custom_tool_call_input.done", {"input": whole}
        yield from super().closing()

    def _news(self, text: str) -> Iterator[Told]:
        if more := text[self._num_told :]:
            self._num_told = len(text)
            yield "custom_tool_call_input.delta", {"delta": more}


class ApplyPatchCall(OutputItem):
    """A call of the tool apply_patch. It is shown once it is complete, because part of a patch must not be applied."""

    def __init__(self, call_id: str) -> None:
        super().__init__("apc")
        self._call_id = call_id

    @property
    def is_shown(self) -> bool:
        return self.status == "completed"

    def to_json(self) -> JsonObject:
        operation = json.loads(self.text)
        if operation["type"] == "delete_file":
            del operation["diff"]
        return items.apply_patch_call(self._call_id, operation, self.id, self.status)

    def opening(self) -> Iterator[Told]:
        yield from ()

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[Told]:
        self._texts.append(text)
        yield from ()

    def closing(self) -> Iterator[Told]:
        if self.is_shown:
            yield "output_item.added", {"item": {**self.to_json(), "status": "in_progress"}}
            yield from super().closing()


_BEGINNING = re.compile(rf'\s*\{{\s*"{items.CUSTOM_INPUT}"\s*:\s*"')
_CHARACTERS = re.compile(
    r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)


def given_input(arguments: str, *, is_whole: bool = True) -> str:
    """The text in the arguments of a custom tool's call, as far as they go. Arguments of another form are the text,
    once they are whole.
    """
    begun = _BEGINNING.match(arguments)
    if begun is None:
        return arguments if is_whole else ""
    found = _CHARACTERS.match(arguments, begun.end())
    assert found is not None
    text: str = json.loads(f'"{found[0]}"')
    return text


class TextItem(OutputItem):
    """An item with one content part; `kind` is the part's type, and the beginning of its events' names."""

    kind: ClassVar[str]

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self._content: list[JsonObject] = []

    @abstractmethod
    def part(self) -> JsonObject:
        """The part as it is now."""

    def opening(self) -> Iterator[Told]:
        yield from super().opening()
        yield "content_part.added", {"content_index": 0, "part": self.part()}

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[Told]:
        self._texts.append(text)
        yield f"{self.kind}.delta", {"content_index": 0, "delta": text}

    def closing(self) -> Iterator[Told]:
        part = self.part()
        yield f"{self.kind}.done", {"content_index": 0, "text": part["text"]}
        yield "content_part.done", {"content_index": 0, "part": part}
        yield from super().closing()

    def parts(self) -> list[JsonObject]:
        """The item's content; empty at the beginning."""
        return [self.part()] if self._texts or self.status != "in_progress" else []


class Reasoning(TextItem):
    """Reasoning; with `is_encrypted` it has its `encrypted_content`, too."""

    kind = "reasoning_text"

    def __init__(self, *, is_encrypted: bool) -> None:
        super().__init__("rs")
        self._is_encrypted = is_encrypted

    def part(self) -> JsonObject:
        return items.reasoning_text(self.text)

    def to_json(self) -> JsonObject:
        item = items.reasoning(self.parts(), self.id, self.status)
        return {**item, "encrypted_content": items.encrypted(self.text)} if self._is_encrypted else item


class Message(TextItem):
    """A message of the model."""

    kind = "output_text"

    def __init__(self) -> None:
        super().__init__("msg")
        self._logprobs: list[JsonObject] = []

    def part(self) -> JsonObject:
        return items.output_text(self.text, list(self._logprobs))

    def to_json(self) -> JsonObject:
        return items.message("assistant", self.parts(), self.id, self.status)

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[Told]:
        scored = logprobs(list(tokens))["content"]
        self._logprobs += scored
        for name, told in super().more(text, tokens):
            yield name, {**told, "logprobs": [_for_event(one) for one in scored]}

    def closing(self) -> Iterator[Told]:
        for name, told in super().closing():
            scored = {"logprobs": [_for_event(one) for one in self._logprobs]}
            yield name, {**told, **scored} if name == "output_text.done" else told


def _for_event(scored: JsonObject) -> JsonObject:
    """A token's log probability as events of text have it: without its bytes."""
    top = [{"token": one["token"], "logprob": one["logprob"]} for one in scored["top_logprobs"]]
    return {"token": scored["token"], "logprob": scored["logprob"], "top_logprobs": top}
