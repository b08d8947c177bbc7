"""The sampling values of a request for the engine: with all defaults, and with the tokens that answers must not have.

A request excludes tokens by `allowed_token_ids`, which excludes all others, and by `bad_words`.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import TypeVar

from msgspec import structs

from genai_server.errors import InvalidField
from genai_server.generation.parameters.sampling_parameters import SamplingFields
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, Sampling
from genai_server.text.tokenizer import Tokenizer

Tokens = TypeVar("Tokens", bound=Collection[int])
# Fields that have the same names and values in a body.
_SAMPLING_FIELDS = set(Sampling.__struct_fields__) - {"seed", "logit_bias", "allowed_tokens", "bad_words"}


def to_sampling(body: SamplingFields, model: ModelInfo) -> Sampling:
    """The request's sampling values, with the model's defaults for absent fields.

    Tokens that the request excludes are not yet part of the result; `with_exclusions` adds them. Raises InvalidField
    for a `logit_bias` with unknown tokens.
    """
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    bias = {int(token): value for token, value in (body.logit_bias or {}).items() if value}
    known_tokens(bias, model, "logit_bias")
    # The engine's seeds are non-negative; OpenAI's may be negative.
    seed = None if body.seed is None else body.seed % 2**64
    return structs.replace(model.defaults, **given, seed=seed, logit_bias=bias)


def nth_choice(request: GenerationRequest, index: int) -> GenerationRequest:
    """The engine request for answer `index` of several answers to the same prompt. Its seed is the given one plus
    `index`, so that the answers differ.
    """
    seed = request.sampling.seed
    if index == 0 or seed is None:
        return request
    return structs.replace(request, sampling=structs.replace(request.sampling, seed=(seed + index) % 2**64))


async def with_exclusions(sampling: Sampling, body: SamplingFields, tokenizer: Tokenizer, model: ModelInfo) -> Sampling:
    """The sampling values, completed with the tokens that the body excludes. Raises InvalidField."""
    if not body.bad_words and not body.allowed_token_ids:
        return sampling

    def exclude() -> Sampling:
        return structs.replace(
            sampling,
            allowed_tokens=_bits(body.allowed_token_ids or [], model),
            bad_words=_encoded(body.bad_words or [], tokenizer, model),
        )

    return await asyncio.to_thread(exclude)


def known_tokens(tokens: Tokens, model: ModelInfo, param: str) -> Tokens:
    """The token ids, unchanged. Raises InvalidField if one of them is not in the model's vocabulary."""
    if unknown := [token for token in tokens if token >= model.vocab_size]:
        raise InvalidField(
            param, f"must have token ids below {model.vocab_size}, the model's vocabulary size", given=unknown[0]
        )
    return tokens


def _bits(tokens: list[int], model: ModelInfo) -> bytes:
    """A bit field with a bit for each token of the vocabulary, set for `tokens`; b"" if there are none. Raises
    InvalidField for unknown tokens.
    """
    if not tokens:
        return b""
    bits = bytearray(-(-model.vocab_size // 8))
    for token in known_tokens(tokens, model, "allowed_token_ids"):
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)


def _encoded(words: Sequence[str], tokenizer: Tokenizer, model: ModelInfo) -> list[list[int]]:
    """The tokens of each word, both at the beginning of a text and after a space.

    Words that the model cannot write are left out. Special tokens in a word are encoded as such, so that they can be
    banned.
    """
    forms = [(f"bad_words[{index}]", form) for index, word in enumerate(words) for form in _forms(word)]
    encoded = tokenizer.encode_each([[form] for _, form in forms])
    for (param, _), tokens in zip(forms, encoded, strict=True):
        if not tokens:
            raise InvalidField(param, "has no tokens")
    distinct = dict.fromkeys(map(tuple, encoded))
    return [list(tokens) for tokens in distinct if max(tokens) < model.vocab_size]


def _forms(word: str) -> tuple[str, ...]:
    """The word without and with a space in front, which many tokenizers encode to different tokens."""
    begun = word.lstrip()
    return (begun, f" {begun}") if begun else (word,)
