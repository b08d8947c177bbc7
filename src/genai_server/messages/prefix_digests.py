"""Digests of the beginnings of prompts, by which an API process knows which prompts an engine's prefix cache holds.

A prompt is cut into blocks of BLOCK_TOKENS tokens. The digest of a block depends on all tokens up to the end of the
block, and on the cache salt and adapter of the request, so that equal digests mean equal prefixes. The tokens cannot be
derived from a digest.
"""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from genai_server.messages.kv_events import BLOCK_TOKENS

_DIGEST_BYTES = 8


def root_digest(salt: str | None, adapter: str | None) -> bytes:
    """The digest that takes the place of a parent for the first block of a prompt. It depends on the request's cache
    salt and on the name of its adapter; both may be None.
    """
    return blake2b(repr((salt, adapter)).encode(), digest_size=_DIGEST_BYTES).digest()


def block_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of a block of tokens. `parent` is the digest of the block before it in the prompt, or the root digest
    for the first block.
    """
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=_DIGEST_BYTES).digest()


def prefix_digests(tokens: Sequence[int], salt: str | None, adapter: str | None) -> Iterator[bytes]:
    """The digests of all full blocks of a prompt, in order. Each digest is computed only when the iterator is asked for
    it. `salt` and `adapter` are those of the request; both may be None.
    """
    digest = root_digest(salt, adapter)
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        digest = block_digest(digest, tokens[start : start + BLOCK_TOKENS])
        yield digest
