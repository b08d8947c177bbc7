"""Text to token ids and back, for model directories and the scripted runner."""

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from genai_server.errors import ModelDirectoryError

FILE = "tokenizer.json"
# A private character, which is in no vocabulary.
_RARE = "\U0010fffd"
# Pieces at a time: the library holds Python's lock while it builds the results.
_BATCH = 1_000
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Decoder:
    """Decodes the tokens of one answer, piece by piece. A character comes with its last token."""

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        first_bytes: Callable[[int], bytes],
        hidden: Collection[int] = frozenset(),
    ) -> None:
        # Gives the bytes of the next token: of the first one, then of all others.
        self._next_bytes = first_bytes
        self._token_bytes = token_bytes
        # Tokens without text.
        self._hidden = hidden
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def decode(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete, possibly empty."""
        text = ""
        for token in tokens:
            if token not in self._hidden:
                text += self._characters.decode(self._next_bytes(token))
                self._next_bytes = self._token_bytes
        return text


class Tokenizer(Protocol):
    """Both directions between text and token ids; usable by several threads at once."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The ids of the special tokens, which structure a prompt, by their texts."""
        ...

    @property
    def unknown(self) -> Set[int]:
        """The token for unknown text, if there is one."""
        ...

    @property
    def vocab_size(self) -> int:
        """How many tokens the tokenizer knows. The model may have more."""
        ...

    def encode(self, *pieces: str) -> list[int]:
        """The token ids of a text. Special tokens within one piece are recognised.

        The text must be valid Unicode.
        """
        ...

    def encode_each(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        """The token ids of each of several texts, given as pieces like those of `encode`."""
        ...

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """The tokens that the tokenizer puts before and after a whole text."""
        ...

    def framed(self, tokens: list[int]) -> list[int]:
        """A text's tokens, with those that the tokenizer puts around a whole text, such as the one that begins it."""
        ...

    def framed_pair(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        """The tokens of two texts that are read together, with those around them, and where the second one begins."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The whole text with its special tokens; bytes that are no character become U+FFFD."""
        ...

    def decoder(self, show: Collection[int | str] = (), *, continues: bool = False) -> Decoder:
        """A decoder for one answer which shows, of the special tokens, only those in `show`, given as ids or texts.

        With `continues` the answer continues a text, so a blank at its beginning is kept.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to a text, in UTF-8, possibly only a part of a character; empty for an unknown id."""
        ...

    def knows(self, token: int) -> bool:
        """Whether there is a token of this id."""
        ...


class ModelTokenizer:
    """The tokenizer of a model directory by its tokenizer.json, as Hugging Face's library reads it.

    Raises ModelDirectoryError if the file is missing or cannot be used.
    """

    def __init__(self, model_dir: Path) -> None:
        path = model_dir / FILE
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more specific
            raise ModelDirectoryError(f"the tokenizer {path} cannot be loaded: {error}") from None
        # Either may be a leftover of training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_tokens = {token.content: id for id, token in added.items() if token.special}
        kinds = _kinds(self._tokenizer.decoder)
        self._has_byte_tokens = "ByteFallback" in kinds
        self._bytes: dict[int, bytes] = {}
        if "ByteLevel" in kinds:
            self._bytes = {id: token.content.encode() for id, token in added.items()}
            self._compute: Callable[[int], bytes] = self._of_byte_level
        else:
            self._compute = self._by_the_library
        self._path = path
        self._anchor = self.encode("a")
        if not self._anchor:
            raise ModelDirectoryError(f'the tokenizer {path} cannot be used: it encodes "a" to no token')
        self._frame = self._around_anchor(self._tokenizer.encode("a").ids)
        self._special_ids = frozenset(self._special_tokens.values())
        self.unknown = self._special_ids.intersection(self.encode(_RARE))

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self._special_tokens

    @property
    def vocab_size(self) -> int:
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, *pieces: str) -> list[int]:
        # The method for a single text holds Python's lock, and computes each token's place in the text.
        tokens: list[int] = []
        for start in range(0, len(pieces), _BATCH):
            batch = list(pieces[start : start + _BATCH])
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                tokens += encoding.ids
        return tokens

    def encode_each(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        pieces = [piece for text in texts for piece in text]
        encoded: list[list[int]] = []
        for start in range(0, len(pieces), _BATCH):
            batch = pieces[start : start + _BATCH]
            encoded += [part.ids for part in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
        if len(pieces) == len(texts):
            return encoded
        parts = iter(encoded)
        return [[token for _ in text for token in next(parts)] for text in texts]

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        return self._frame

    def framed(self, tokens: list[int]) -> list[int]:
        before, after = self._frame
        return [*before, *tokens, *after]

    def framed_pair(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        before, middle, after, is_typed = self._pair_frame
        begins = len(before) + len(first) + len(middle)
        return [*before, *first, *middle, *second, *after], begins if is_typed else 0

    @cached_property
    def _pair_frame(self) -> tuple[list[int], list[int], list[int], bool]:
        """What stands before, between and after two texts, and whether their types of tokens differ."""
        whole = self._tokenizer.encode("a", "a")
        before, rest = self._around_anchor(whole.ids)
        middle, after = self._around_anchor(rest)
        return before, middle, after, 1 in whole.type_ids

    def _around_anchor(self, whole: list[int]) -> tuple[list[int], list[int]]:
        """What stands before and after the tokens of "a" in `whole`. Raises ModelDirectoryError if not there."""
        size = len(self._anchor)
        for start in range(len(whole) - size + 1):
            if whole[start : start + size] == self._anchor:
                return whole[:start], whole[start + size :]
        raise ModelDirectoryError(
            f'the tokenizer {self._path} cannot be used: it encodes "a" to {self._anchor}, and to {whole} where it '
            "adds the tokens around a text"
        )

    def decode(self, tokens: Sequence[int]) -> str:
        first, *others = tokens or [-1]
        data = self._first_bytes(first) + b"".join(map(self.token_bytes, others))
        return data.decode(errors="replace")

    def decoder(self, show: Collection[int | str] = (), *, continues: bool = False) -> Decoder:
        shown = {self._special_tokens.get(token, -1) if isinstance(token, str) else token for token in show}
        first_bytes = self.token_bytes if continues else self._first_bytes
        return Decoder(self.token_bytes, first_bytes, self._special_ids - shown)

    def token_bytes(self, token: int) -> bytes:
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = self._compute(token)
        return data

    def knows(self, token: int) -> bool:
        return self._text_of(token) is not None

    def _text_of(self, token: int) -> str | None:
        """The token as the vocabulary writes it."""
        text: str | None = self._tokenizer.id_to_token(token) if 0 <= token < 2**32 else None
        return text

    def _first_bytes(self, token: int) -> bytes:
        """The bytes of a first token, without the blank that some tokenizers put before the first word."""
        data = self.token_bytes(token)
        if data[:1] == b" " and self._compute == self._by_the_library:
            return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()
        return data

    def _of_byte_level(self, token: int) -> bytes:
        text = self._text_of(token)
        try:
            return bytes(map(_BYTE_OF.__getitem__, text or ""))
        except KeyError:
            return str(text).encode()

    def _by_the_library(self, token: int) -> bytes:
        text = self._text_of(token)
        if text is None:
            return b""
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        before = self._tokenizer.decode(self._anchor, skip_special_tokens=False)
        both = self._tokenizer.decode([*self._anchor, token], skip_special_tokens=False)
        return str(both[len(before) :]).encode()


def _kinds(decoder: Any) -> set[str]:
    """The types of a decoder of the library and of the decoders that it consists of."""

    def walk(part: Any) -> Iterable[str]:
        if isinstance(part, dict):
            yield part.get("type", "")
            for inner in part.get("decoders", []):
                yield from walk(inner)

    return set(walk(json.loads(decoder.__getstate__()))) if decoder is not None else set()


def _byte_characters() -> dict[str, int]:
    """The printable character for each byte in the tokens of byte-level BPE (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_characters()


class ByteTokenizer:
    """The scripted runner's tokens: the bytes of UTF-8; ids above 255 have no text."""

    special_tokens: Mapping[str, int] = {}
    unknown: Set[int] = frozenset()
    vocab_size = 257

    def encode(self, *pieces: str) -> list[int]:
        return list("".join(pieces).encode())

    def encode_each(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        return [self.encode(*text) for text in texts]

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        return [], []

    def framed(self, tokens: list[int]) -> list[int]:
        return tokens

    def framed_pair(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        return [*first, *second], 0

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def decoder(self, show: Collection[int | str] = (), *, continues: bool = False) -> Decoder:
        return Decoder(self.token_bytes, self.token_bytes)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if 0 <= token < 256 else b""

    def knows(self, token: int) -> bool:
        return 0 <= token < self.vocab_size
