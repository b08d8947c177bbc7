"""The content of a chat message: a string, None, or a list of parts, which are texts, images or audio clips."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from genai_server.errors import InvalidField

Message = Mapping[str, Any]
Content = str | list[Any] | None
# Parts without text, with what templates for lists of parts call them.
MEDIA: Mapping[str, Collection[str]] = {"image": {"image", "image_url"}, "audio": {"audio", "input_audio"}}
# Between two contents that become one.
_BETWEEN = "\n\n"


def is_medium(part: Any) -> bool:
    """Whether a content part is an image or an audio clip."""
    return isinstance(part, Mapping) and part.keys() == {"type"} and part["type"] in MEDIA


def has_media(content: Content) -> bool:
    """Whether a message content contains images or audio clips."""
    return isinstance(content, list) and any(map(is_medium, content))


def num_media(messages: Iterable[Message]) -> int:
    """Return the number of images and audio clips in all messages."""
    contents = (message.get("content") for message in messages)
    return sum(is_medium(part) for parts in contents if isinstance(parts, list) for part in parts)


def plain_content(content: Any, path: str) -> Content:
    """Return a message content with its text parts joined by line breaks, unless one part is an image or audio clip.

    `path` is the path of the content. Raises InvalidField, naming the part, for a part of an unknown type.
    """
    if not isinstance(content, list):
        return content  # type: ignore[no-any-return]
    texts = [_text_of(part, f"{path}[{n}]") for n, part in enumerate(content) if not is_medium(part)]
    return "\n".join(texts) if len(texts) == len(content) else content


def joined(*contents: Content) -> Content:
    """Join several message contents to one, with an empty line between texts."""
    non_empty = [content for content in contents if content]
    if not non_empty:
        return ""
    if all(isinstance(content, str) for content in non_empty):
        return _BETWEEN.join(str(content) for content in non_empty)
    parts: list[Any] = []
    for content in non_empty:
        for number, part in enumerate(_parts(content)):
            if number == 0 and parts and not is_medium(part) and not is_medium(parts[-1]):
                parts[-1] = {**part, "text": f"{parts[-1]['text']}{_BETWEEN}{part['text']}"}
            else:
                parts.append(part)
    return parts


def labelled(label: str, content: Content) -> Content:
    """Return a message content with a line `[label]` before it that says what the content is."""
    if isinstance(content, list):
        return [{"type": "text", "text": f"[{label}]\n"}, *content]
    return f"[{label}]\n{content}" if content else f"[{label}]"


def text_of(content: Content) -> str:
    """Return the text of a message content without its images and audio clips."""
    return "\n".join(part["text"] for part in _parts(content) if not is_medium(part))


def media_of(content: Content) -> list[Any]:
    """Return the parts of a message content that are images or audio clips."""
    return [part for part in content if is_medium(part)] if isinstance(content, list) else []


def _parts(content: Content) -> Sequence[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _text_of(part: Any, path: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise InvalidField(path, "must be a part of type text; this model supports no other type")
    return text
