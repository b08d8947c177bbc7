"""The client's names for images and sounds of a chat that another API's body became, in errors and leniency reports."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from genai_server.apis.shared.chat_messages import ChatMessage


class ImagePlace(NamedTuple):
    """Where a body has an image or a sound."""

    # The part, such as `input[0].content[1]`.
    part: str
    # The field with its data or URL.
    url: str


def image_names(messages: Sequence[ChatMessage], places: Iterable[ImagePlace]) -> dict[str, str]:
    """The body's names, keyed by the chat's. `places` has the images in the order in which the chat has them."""
    parts = [
        (f"messages[{number}].content[{index}]", "image_url.url" if part.type == "image_url" else "input_audio.data")
        for number, message in enumerate(messages)
        for index, part in message.media
    ]
    found: dict[str, str] = {}
    for (part, field), place in zip(parts, places, strict=True):
        found |= {part: place.part, f"{part}.{field}": place.url}
    return found
