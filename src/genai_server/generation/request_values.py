"""The values of a request for the engine: the sampling values with all defaults, the tokens that answers must not have,
and the rules about reasoning.

A request excludes tokens by `allowed_token_ids`, which excludes all others, and by `bad_words`. The budget of reasoning
is the request's own, or else that of its API key, or else the model's.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import TypeVar

from msgspec import structs

from genai_server.errors import InvalidField
from genai_server.generation.dependencies import RequestContext
from genai_server.generation.output_spec import reasoning_state
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.parameters.sampling_parameters import SamplingFields
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, Sampling, ThoughtRules
from genai_server.text.answers.reasoning import ReasoningState
from genai_server.text.codec import TextCodec
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


_BUDGET, _MESSAGE = "thinking_token_budget", "reasoning_budget_message"
# The value of a budget for any number of tokens.
_NO_LIMIT = -1
# The budgets of efforts, for templates that know none. Others have no limit.
_BUDGETS = {"minimal": 512, "low": 1024, "medium": 4096}


def with_default_budget(body: ChatParameters, default: int | None, codec: TextCodec) -> ChatParameters:
    """The body with a token budget for reasoning. A body that has a budget already, or whose model does not reason, is
    returned unchanged.

    If the body's reasoning effort sets the budget, because the chat template does not read efforts, the efforts
    `minimal`, `low` and `medium` have budgets of their own. Otherwise the budget is `default` tokens; None sets no
    budget.
    """
    if body.thinking_token_budget is not None or codec.dialect.reasoning is None:
        return body
    if body.effort_is_budget and not codec.writer.thinking.efforts:
        default = _BUDGETS.get(body.reasoning_effort or "", default)
    return body if default is None else body.model_copy(update={_BUDGET: default})


async def reasoning_rules(
    body: ChatParameters, codec: TextCodec, prompt: list[int], context: RequestContext
) -> ThoughtRules | None:
    """The rules by which the engine finds and ends the reasoning of an answer to this prompt; None if the format of the
    model's reasoning is unknown.

    With an unknown format a budget has no effect: it is left out of lenient requests, and otherwise refused with
    InvalidField. InvalidField is also raised if `reasoning_budget_message`, the text that ends reasoning beyond the
    budget, contains the marker that ends reasoning.
    """
    reasoning, budget, message = codec.dialect.reasoning, body.thinking_token_budget, body.reasoning_budget_message
    if reasoning is None:
        for name, value in ((_BUDGET, budget), (_MESSAGE, message)):
            if value not in (None, 0, _NO_LIMIT) and not context.leniency.leave_out(name):
                raise InvalidField(name, "has no effect with this model, whose reasoning has no known format")
        return None
    said: list[int] = []
    if message:
        if reasoning.closing in message:
            raise InvalidField(_MESSAGE, f"must not have {reasoning.closing}, which ends reasoning", given=message)
        said = await codec.encode_text(
            message, add_special=False, parse_special=False, param=_MESSAGE, owner=context.owner
        )
    written = codec.writer.traits(with_tools=bool(body.tools)).reasoning_end
    return ThoughtRules(
        reasoning.opening_pattern,
        reasoning.closing_pattern,
        is_open=reasoning_state(body, codec, prompt) is ReasoningState.INSIDE,
        are_several=reasoning.thoughts_recur,
        end=[*said, *codec.tokenizer.encode(reasoning.end(written))],
        later_end=codec.tokenizer.encode(reasoning.later_end(written)),
        budget=None if budget == _NO_LIMIT else budget,
    )
