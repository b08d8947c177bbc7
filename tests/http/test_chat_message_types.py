"""Every type of message, content part and call that OpenAI's package knows is accepted as history of a chat.

The examples are made from the package's types, so that a new version shows what is new.
"""

from typing import Any

import pytest
from openai.types.chat import (
    ChatCompletionContentPartParam,
    ChatCompletionMessage,
    ChatCompletionMessageParam,
    ParsedChatCompletionMessage,
    chat_completion_assistant_message_param,
)

from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER
from tests.running_server import RunningServer
from tests.sdk_examples import Examples, members

PARTS = (ChatCompletionContentPartParam, chat_completion_assistant_message_param.ContentArrayOfContentPart)
MESSAGES = (ChatCompletionMessageParam, ChatCompletionMessage, ParsedChatCompletionMessage)
USER = {"role": "user", "content": "say hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
# Fields of which the model reads nothing, and which no header names.
NOT_SAID = {"id", "tool_call_id", "name"}


def _example(kind: Any) -> tuple[dict[str, Any], dict[str, str]]:
    examples = Examples()
    message = examples.of(kind)
    for call in message.get("tool_calls") or ():
        call["function"]["arguments"] = f'{{"a": "{call["function"]["arguments"]}"}}'
    if message.get("function_call") and message.get("tool_calls"):
        del message["function_call"]  # an older form of the same
    if isinstance(message.get("audio"), dict):
        message["audio"].pop("data", None)
    return message, examples.marks


@pytest.mark.parametrize(
    "kind", [kind for union in MESSAGES for kind in members(union)], ids=lambda kind: kind.__name__
)
def test_nothing_of_a_message_is_lost_without_being_named(scripted: RunningServer, kind: Any) -> None:
    message, marks = _example(kind)
    messages = [USER, message, USER]
    if message["role"] in ("tool", "function"):
        call = CALL | {"id": message.get("tool_call_id", "1")}
        messages.insert(1, {"role": "assistant", "tool_calls": [call]})
    response = scripted.client.post("/apply-template", json={"messages": messages})
    assert response.status_code == 200, response.text
    prompt = response.json()["prompt"]
    named = " ".join(response.headers.get(name, "") for name in (CONVERTED_HEADER, IGNORED_HEADER))
    kept = f"{message}"
    lost = {field for mark, field in marks.items() if mark in kept and mark not in prompt} - NOT_SAID
    assert {field for field in lost if not _is_named(field, named)} == set()
    assert scripted.client.post("/v1/chat/completions", json={"messages": messages}).status_code == 200


def _is_named(field: str, named: str) -> bool:
    """Whether the headers name a field, or the object that it is in."""
    inside = {"expires_at": "audio", "transcript": "audio", "title": "annotations", "url": "annotations"}
    return f".{inside.get(field, field)}" in named


@pytest.mark.parametrize("kind", [kind for union in PARTS for kind in members(union)], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_parts_of_all_types_are_read_or_named(scripted: RunningServer, kind: Any, role: str) -> None:
    examples = Examples()
    part = examples.of(kind)
    name = part["type"]
    message = {"role": role, "content": [part], **({"tool_call_id": "1"} if role == "tool" else {})}
    earlier = [USER, {"role": "assistant", "tool_calls": [CALL]}] if role == "tool" else [USER]
    response = scripted.client.post("/v1/chat/completions", json={"messages": [*earlier, message, USER]})
    assert response.status_code == 200, response.text
    named = " ".join(response.headers.get(header, "") for header in (CONVERTED_HEADER, IGNORED_HEADER))
    kinds = {"image_url": "(image)", "input_audio": "(sound)", "file": "(file)", "refusal": "(refusal as text)"}
    assert kinds.get(name, "") in named
