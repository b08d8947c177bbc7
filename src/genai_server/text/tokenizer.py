"""Tokenizers, which convert text to token ids and back, and decoders of answers.

`ModelTokenizer` reads the tokenizer.json of a model's folder. `ByteTokenizer` is for scripted devices, which write
prepared answers instead of running a model. `Decoder` decodes the tokens of an answer one by one.
"""

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import tokenizers

from genai_server.errors import ModelDirectoryError
from genai_server.model_files.speech_and_vision import BYTE_CHARACTERS

FILE = "tokenizer.json"
# A private character that is in no vocabulary.
_RARE = "\U0010fffd"
# Pieces per batch: the library holds the GIL while it builds the results.
_BATCH = 1_000
# The byte for each character in the tokens of byte-level BPE.
_BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Decoder:
    """Decodes the tokens of one answer to text as they arrive. `Tokenizer.decoder` creates it.

    A character whose bytes are spread over several tokens is returned with the last of them. `hidden` are the ids of
    tokens that are left out of the text. `first_bytes` returns the bytes of the answer's first token, and `token_bytes`
    those of any other.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        first_bytes: Callable[[int], bytes],
        hidden: Collection[int] = frozenset(),
    ) -> None:
        # Returns the bytes of the next token: `first_bytes` for the first one, then `token_bytes`.
        self._next_bytes = first_bytes
        self._token_bytes = token_bytes
        # Tokens that are not shown.
        self._hidden = hidden
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text that the next tokens of the answer complete, possibly ""."""
        text = ""
        for token in tokens:
            if token not in self._hidden:
                text += self._characters.decode(self._next_bytes(token))
                self._next_bytes = self._token_bytes
        return text


class Tokenizer(ABC):
    """Base class of the tokenizers, which convert between text and token ids. Subclasses are thread-safe.

    They have the attributes `special_tokens` (ids by text), `unknown` (the token for unknown text, if any),
    `vocab_size` (the number of the tokenizer's tokens) and `frame` (the special tokens that belong before and after a
    text).
    """

    # The ids of the special tokens, keyed by text.
    special_tokens: Mapping[str, int] = {}
    # The token for unknown text, if any.
    unknown: Set[int] = frozenset()
    # Number of tokens of the tokenizer. The model may have more.
    vocab_size: int
    # The special tokens that the tokenizer puts before and after a text.
    frame: tuple[list[int], list[int]] = ([], [])

    def encode(self, *pieces: str) -> list[int]:
        """Return the token ids of a text, given as pieces that are encoded one by one, without the special tokens
        around a text.

        A special token is only recognised if it lies within one piece. The text must be valid Unicode.
        """
        (tokens,) = self.encode_each([pieces])
        return tokens

    @abstractmethod
    def encode_each(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        """Return the token ids of each of several texts, without the special tokens around a text.

        Each text is given as pieces that are encoded one by one, so a special token is only recognised within one
        piece.
        """

    def framed(self, tokens: list[int]) -> list[int]:
        """Return the tokens of a text with the special tokens that the tokenizer puts before and after a text."""
        before, after = self.frame
        return [*before, *tokens, *after]

    @property
    def pair_frame(self) -> tuple[list[int], list[int], list[int], bool]:
        """What the tokenizer adds to a pair of texts: the special tokens before, between and after them, and whether
        the second text has another token type (segment) than the first.
        """
        return [], [], [], False

    def framed_pair(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        """Join the tokens of two texts with the special tokens that the tokenizer puts around and between them.

        Returns the tokens, and the index where the second text begins; 0 if both texts have one token type (segment).
        """
        before, middle, after, is_typed = self.pair_frame
        start = len(before) + len(first) + len(middle)
        return [*before, *first, *middle, *second, *after], start if is_typed else 0

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, including special tokens. Invalid UTF-8 becomes U+FFFD."""
        first, *remaining = tokens or [-1]
        data = self.first_bytes(first) + b"".join(map(self.token_bytes, remaining))
        return data.decode(errors="replace")

    def decoder(self, show: Collection[int | str] = (), *, continues: bool = False) -> Decoder:
        """Return a decoder for one answer.

        The decoder omits special tokens, except those in `show`, given as ids or texts. With `continues`, the answer
        continues a text, so a space at its beginning is kept.
        """
        shown = {self.special_tokens.get(token, -1) if isinstance(token, str) else token for token in show}
        first_bytes = self.token_bytes if continues else self.first_bytes
        return Decoder(self.token_bytes, first_bytes, frozenset(self.special_tokens.values()) - shown)

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """Return a token's text in UTF-8, which may be only a part of a character; empty for an unknown id."""

    def first_bytes(self, token: int) -> bytes:
        """Return the bytes of a token that is the first of an answer.

        They are without the space that some tokenizers put before the first word of a text.
        """
        return self.token_bytes(token)

    @abstractmethod
    def has_token(self, token: int) -> bool:
        """Whether the tokenizer has a token with this id."""


class ModelTokenizer(Tokenizer):
    """The tokenizer of the model in the folder `model_dir`: Hugging Face's `tokenizers` library with the file
    tokenizer.json.

    The constructor raises ModelDirectoryError if the file is missing or cannot be used.
    """

    def __init__(self, model_dir: Path) -> None:
        path = model_dir / FILE
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more specific
            raise ModelDirectoryError(f"the tokenizer {path} cannot be loaded: {error}") from None
        # Both settings may be left over from training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_tokens = {token.content: id for id, token in added.items() if token.special}
        kinds = _kinds(self._tokenizer.decoder)
        self._has_byte_tokens = "ByteFallback" in kinds
        self._bytes: dict[int, bytes] = {}
        if "ByteLevel" in kinds:
            self._bytes = {id: token.content.encode() for id, token in added.items()}
            self._compute: Callable[[int], bytes] = self._of_byte_level
        else:
            self._compute = self._decode_with_library
        self._path = path
        self._anchor = self.encode("a")
        if not self._anchor:
            raise ModelDirectoryError(f'the tokenizer {path} cannot be used: it encodes "a" to zero tokens')
        self.frame = self._around_anchor(self._tokenizer.encode("a").ids)
        self.unknown = {*self.special_tokens.values()}.intersection(self.encode(_RARE))

    def encode_each(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        encoded = self._encoded([piece for text in texts for piece in text])
        return [list(chain.from_iterable(islice(encoded, len(text)))) for text in texts]

    def _encoded(self, pieces: Sequence[str]) -> Iterator[list[int]]:
        # The method for a single text holds the GIL and computes each token's position in the text.
        for start in range(0, len(pieces), _BATCH):
            batch = list(pieces[start : start + _BATCH])
            yield from (part.ids for part in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False))

    @cached_property
    def pair_frame(self) -> tuple[list[int], list[int], list[int], bool]:
        encoding = self._tokenizer.encode("a", "a")
        before, tail = self._around_anchor(encoding.ids)
        middle, after = self._around_anchor(tail)
        return before, middle, after, 1 in encoding.type_ids

    def _around_anchor(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """Find out which special tokens the tokenizer adds before and after a text, from the tokens of the sample text
        "a".

        `tokens` are the tokens of "a" with those that are added. Returns the added tokens before and after it. Raises
        ModelDirectoryError if `tokens` does not contain the tokens of "a".
        """
        size = len(self._anchor)
        for start in range(len(tokens) - size + 1):
            if tokens[start : start + size] == self._anchor:
                return tokens[:start], tokens[start + size :]
        raise ModelDirectoryError(
            f'the tokenizer {self._path} cannot be used: it encodes "a" to {self._anchor}, and to {tokens} where it '
            "adds the tokens around a text"
        )

    def token_bytes(self, token: int) -> bytes:
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = self._compute(token)
        return data

    def has_token(self, token: int) -> bool:
        return self._text_of(token) is not None

    def _text_of(self, token: int) -> str | None:
        """Return the text of a token as written in the vocabulary, which may encode bytes; None for an unknown id."""
        text: str | None = self._tokenizer.id_to_token(token) if 0 <= token < 2**32 else None
        return text

    def first_bytes(self, token: int) -> bytes:
        data = self.token_bytes(token)
        if data[:1] == b" " and self._compute == self._decode_with_library:
            return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()
        return data

    def _of_byte_level(self, token: int) -> bytes:
        text = self._text_of(token)
        try:
            return bytes(map(_BYTE_OF.__getitem__, text or ""))
        except KeyError:
            return str(text).encode()

    def _decode_with_library(self, token: int) -> bytes:
        text = self._text_of(token)
        if text is None:
            return b""
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        before = self._tokenizer.decode(self._anchor, skip_special_tokens=False)
        both = self._tokenizer.decode([*self._anchor, token], skip_special_tokens=False)
        return str(both[len(before) :]).encode()


def _kinds(decoder: Any) -> set[str]:
    """Return the type names, such as "ByteLevel", of a decoder of the tokenizers library and of the decoders nested in
    it.
    """

    def walk(part: Any) -> Iterable[str]:
        if isinstance(part, dict):
            yield part.get("type", "")
            for inner in part.get("decoders", []):
                yield from walk(inner)

    return set(walk(json.loads(decoder.__getstate__()))) if decoder is not None else set()


class ByteTokenizer(Tokenizer):
    """Tokenizer of scripted devices, which write prepared answers instead of running a model.

    The tokens of a text are its bytes in UTF-8. Ids above 255 have no text.
    """

    vocab_size = 257

    def encode_each(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        return [list("".join(text).encode()) for text in texts]

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if 0 <= token < 256 else b""

    def has_token(self, token: int) -> bool:
        return 0 <= token < self.vocab_size
