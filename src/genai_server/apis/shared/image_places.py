"""The client's names for the images of a chat that another API's body became, for errors and what is left out."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from genai_server.apis.shared.chat_messages import ChatMessage


class ImagePlace(NamedTuple):
    """Where a body has an image."""

    # The part, such as `input[0].content[1]`.
    part: str
    # The field with the image's data or URL.
    url: str


def image_names(messages: Sequence[ChatMessage], places: Iterable[ImagePlace]) -> dict[str, str]:
    """The body's names, keyed by the chat's. `places` has the images in the order in which the chat has them."""
    parts = [
        f"messages[{number}].content[{index}]" for number, message in enumerate(messages) for index, _ in message.images
    ]
    found: dict[str, str] = {}
    for part, place in zip(parts, places, strict=True):
        found |= {part: place.part, f"{part}.image_url.url": place.url}
    return found
