"""Text to token ids and back, of a model directory or of the scripted runner."""

import codecs
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from genai_server.config import disable_telemetry
from genai_server.errors import InvalidField


class Tokenizer(Protocol):
    """Both directions between text and token ids; used by one thread only."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text in which special tokens are recognised. Raises InvalidField."""
        ...

    def decoder(self) -> "Decoder":
        """A decoder for one answer."""
        ...


class Decoder(Protocol):
    """Token ids of one answer to text, piece by piece; a character is held back until its last token has come."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete, possibly empty."""
        ...


class ModelTokenizer:
    """The tokenizer of a model directory, loaded without the model.

    It never gives up Python's lock. 92,000 characters of prose take it 3 ms, but see text/encoder.py.
    Raises RuntimeError with the library's own reason if it cannot be loaded, ImportError without the library.
    """

    def __init__(self, model_dir: Path) -> None:
        disable_telemetry()
        import onnxruntime_genai

        self._tokenizer: Any = onnxruntime_genai.Tokenizer(onnxruntime_genai.Config(str(model_dir)))

    def encode(self, text: str) -> list[int]:
        if "\0" in text:
            # The library takes it for the end of the text, and would drop the rest without a word.
            raise InvalidField("the messages have a NUL character (U+0000), which cannot be encoded", param="messages")
        tokens: list[int] = self._tokenizer.encode(text).tolist()
        return tokens

    def decoder(self) -> Decoder:
        return PieceDecoder(self._tokenizer.create_stream().decode)


class PieceDecoder:
    """A decoder over a function that decodes one token in the context of those before."""

    def __init__(self, decode_one: Callable[[int], str]) -> None:
        self._decode_one = decode_one

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(map(self._decode_one, tokens))


class ByteTokenizer:
    """The scripted runner's tokens: the bytes of UTF-8; ids above 255 have no text."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode(errors="replace"))

    def decoder(self) -> Decoder:
        incremental = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return PieceDecoder(lambda token: incremental.decode(bytes([token])) if token < 256 else "")
