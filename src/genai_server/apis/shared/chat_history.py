"""What chats of earlier turns have that this server's form of messages does not, in OpenAI's form of messages.

Programs send back whatever they were given, by this server, by another one, or by an SDK. What can be read as text is
converted and named; what cannot is left out and named. What the user's last message has is left for validation.
"""

from collections.abc import Collection, Iterator
from typing import Any

from genai_server.apis.shared.foreign_tools import part_text
from genai_server.generation.parameters.chat_messages import ChatMessage
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import LeftOut, history_of, nameable, objects_at, replace_media

# Parts that are files.
FILES = {"file": "file"}
_PARTS = ("text", "image_url", "input_audio", *FILES)


def convert_messages(body: Any) -> list[str]:
    """Convert the history in a body's `messages`; returns the locations, each with the form that it has now."""
    found = convert_parts(history_of(body, "messages"), "messages[].content[]", _PARTS, "text")
    for place, message in objects_at(body, "messages[]"):
        if message.get("role") != "assistant":
            continue
        refusal, audio = message.get("refusal"), message.get("audio")
        if isinstance(refusal, str):
            del message["refusal"]
            found += [f"{place}.refusal (as content)"] if _add_text(message, refusal) else []
        if isinstance(audio, dict) and isinstance(audio.get("transcript"), str):
            del message["audio"]
            found += [f"{place}.audio (its transcript as content)"] if _add_text(message, audio["transcript"]) else []
    return found


def _leave_out_of_answers(body: Any) -> Iterator[str]:
    for place, message in objects_at(body, "messages[]"):
        for field in ("annotations", "audio"):
            if message.get(field) and message.get("role") == "assistant":
                del message[field]
                yield f"{place}.{field}"


# What of the history in a body's `messages` cannot be read as text.
HISTORY = LeftOut(
    rules=(
        lambda body: replace_media(history_of(body, "messages"), FILES, "text", "messages[].content[]"),
        _leave_out_of_answers,
    ),
    forms={"messages[]": ChatMessage},
)


def convert_parts(history: JsonObject, path: str, known: Collection[str], text_type: str) -> list[str]:
    """Replace the content parts at a path of a history whose types are not `known` by parts of this type with their
    text; returns the locations.
    """
    found = []
    for place, part in objects_at(history, path):
        kind = part.get("type")
        if isinstance(kind, str) and kind not in known:
            text = part_text(part)
            part.clear()
            part.update(type=text_type, text=text)
            found.append(f"{place} ({nameable(kind, 'a part')} as text)")
    return found


def _add_text(message: JsonObject, text: str) -> bool:
    """Add a text to the content of a message. Returns False if the text is empty."""
    content = message.get("content")
    if text and isinstance(content, list):
        content.append({"type": "text", "text": text})
    elif text and isinstance(content, str | None):
        message["content"] = f"{content}\n{text}" if content else text
    return bool(text)
