"""Converts parts of a conversation history in OpenAI's format that this server does not support.

Programs send back messages that they received from this server, another server or an SDK. Parts that can be read as
text are converted, other parts are left out, and both are reported. The user's last message is not changed; validation
refuses what it may not contain.
"""

from collections.abc import Collection, Iterator
from typing import Any

from genai_server.apis.shared.tool_texts import part_text
from genai_server.generation.parameters.chat_messages import ChatMessage
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import LeftOut, history_of, nameable, objects_at, replace_media

# Parts that are files.
FILES = {"file": "file"}
_PARTS = ("text", "image_url", "input_audio", *FILES)


def convert_messages(body: Any) -> list[str]:
    """Convert parts of the conversation history in the field `messages` of a body that this server does not support to
    text. Returns the location and new form of each change.
    """
    found = convert_parts(history_of(body, "messages"), "messages[].content[]", _PARTS, "text")
    for location, message in objects_at(body, "messages[]"):
        if message.get("role") != "assistant":
            continue
        refusal, audio = message.get("refusal"), message.get("audio")
        if isinstance(refusal, str):
            del message["refusal"]
            found += [f"{location}.refusal (as content)"] if _add_text(message, refusal) else []
        if isinstance(audio, dict) and isinstance(audio.get("transcript"), str):
            del message["audio"]
            found += (
                [f"{location}.audio (its transcript as content)"] if _add_text(message, audio["transcript"]) else []
            )
    return found


def _leave_out_of_answers(body: Any) -> Iterator[str]:
    for location, message in objects_at(body, "messages[]"):
        for field in ("annotations", "audio"):
            if message.get(field) and message.get("role") == "assistant":
                del message[field]
                yield f"{location}.{field}"


# What of the history in a body's `messages` cannot be read as text.
HISTORY = LeftOut(
    rules=(
        lambda body: replace_media(history_of(body, "messages"), FILES, "text", "messages[].content[]"),
        _leave_out_of_answers,
    ),
    forms={"messages[]": ChatMessage},
)


def convert_parts(history: JsonObject, path: str, known: Collection[str], text_type: str) -> list[str]:
    """Replace content parts of unknown types in a conversation history by their text. Returns the location and former
    type of each replaced part.

    `path` is where the parts are, such as `messages[].content[]`. Parts with a type in `known` are unchanged. The new
    parts have the type `text_type`.
    """
    found = []
    for location, part in objects_at(history, path):
        kind = part.get("type")
        if isinstance(kind, str) and kind not in known:
            text = part_text(part)
            part.clear()
            part.update(type=text_type, text=text)
            found.append(f"{location} ({nameable(kind, 'a part')} as text)")
    return found


def _add_text(message: JsonObject, text: str) -> bool:
    """Append a text to the content of a message. Returns whether there was anything to append: False if the text is
    empty.
    """
    content = message.get("content")
    if text and isinstance(content, list):
        content.append({"type": "text", "text": text})
    elif text and isinstance(content, str | None):
        message["content"] = f"{content}\n{text}" if content else text
    return bool(text)
