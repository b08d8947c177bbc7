"""Maps images and audio of a chat request to their fields in the body of another API, for error messages and
reports.
"""

from collections.abc import Iterable, Sequence

from genai_server.generation.parameters.chat_messages import ChatMessage

# Where a body has an image or audio: the part, such as `input[0].content[1]`, and its field with the data or URL.
MediaLocation = tuple[str, str]


def media_names(messages: Sequence[ChatMessage], locations: Iterable[MediaLocation]) -> dict[str, str]:
    """Map the path of each image and audio part in the chat's messages to its path in the body from which the chat was
    made.

    `locations` are the locations of the images and audio in that body, in the order in which the messages contain them.
    """
    parts = [
        (f"messages[{number}].content[{index}]", "image_url.url" if part.type == "image_url" else "input_audio.data")
        for number, message in enumerate(messages)
        for index, part in message.media
    ]
    found: dict[str, str] = {}
    for (part, field), (outer_part, outer_field) in zip(parts, locations, strict=True):
        found |= {part: outer_part, f"{part}.{field}": outer_field}
    return found
