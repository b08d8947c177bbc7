"""Encodes the chunks of a stream that differ in their text only."""

from collections.abc import Callable

import msgspec

from genai_server.openai_api.schemas.base import JsonObject


class TextChunks:
    """Encodes each answer's chunk once, and then only its texts.

    `build` makes the chunk of an answer, whose text is the value of `key` and empty. The chunk has that key only once.
    """

    def __init__(self, build: Callable[[int], JsonObject], key: str) -> None:
        self._build = build
        self._key = b'"%b":' % key.encode()
        # What comes before and after the text, by the answer's index.
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._encode = msgspec.json.Encoder().encode

    def encode(self, index: int, text: str) -> bytes:
        """The JSON of an answer's chunk with this text."""
        around = self._around.get(index)
        if around is None:
            # Quotation marks within strings are escaped, so only the key itself is found.
            before, key, after = self._encode(self._build(index)).partition(self._key)
            around = self._around[index] = before + key, after.removeprefix(b'""')
        return b"%b%b%b" % (around[0], self._encode(text), around[1])
