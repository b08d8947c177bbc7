"""The continuation of a sequence by a step's logits: its next token, log probabilities, or its end."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.sampling.grammar import Guide
from genai_server.engine.sampling.logprobs import token_logprob, token_logprobs
from genai_server.engine.sampling.transcript import with_rules
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import GrammarFailed, InvalidField
from genai_server.messages.generation_request import FinishReason, TokenLogprob


@dataclass(frozen=True)
class NextToken:
    """The result of a step for one sequence."""

    # At most one token.
    tokens: list[int] = field(default_factory=list)
    # One for the token, if the request asks for it.
    logprobs: list[TokenLogprob] = field(default_factory=list)
    # Why the answer ends; None if it continues.
    reason: FinishReason | None = None


def choose_next_token(sequence: Sequence, scores: Scores, eos: Tokens[int]) -> NextToken:
    """Choose the next token of a sequence, by the logits after its last token.

    A token of `eos` ends the answer and is not part of it, unless the request ignores them. So does a stop token of the
    request. An answer with a grammar ends when no further token is possible. Raises GrammarFailed and InvalidField,
    which end the answer, too.
    """
    if sequence.num_left == 0:
        return NextToken(reason=FinishReason.LENGTH)  # the request asks for no token at all
    request = sequence.request
    if request.transcript is not None:
        produced = sequence.tokens[len(request.prompt) :]
        scores = Scores(with_rules(request.transcript, produced, scores.last)[np.newaxis])
    try:
        token = _choose(sequence, scores, eos)
    except (GrammarFailed, InvalidField):
        if request.needs_grammar or sequence.guide is None:
            raise
        sequence.guide = None
        token = _choose(sequence, scores, eos)
    if token is None or token in _ends(sequence, eos):
        return NextToken(reason=FinishReason.STOP)
    sequence.append(token)
    _commit(sequence, token)
    wanted = request.top_logprobs is not None
    logprobs = [token_logprob(scores, token, request.top_logprobs or 0, request.scored_tokens)] if wanted else []
    if sequence.guide is not None and sequence.guide.is_complete:
        return NextToken([token], logprobs, FinishReason.STOP)
    return NextToken([token], logprobs, FinishReason.LENGTH if sequence.num_left == 0 else None)


def needs_all_logits(sequence: Sequence) -> bool:
    """Whether `choose_next_token` needs all logits for nearly every token, where a device gives the best."""
    request, sampler = sequence.request, sequence.sampler
    # Where a grammar is only a guide, tokens are drawn without it.
    is_masked = _is_too_early(sequence) or (sequence.guide is not None and request.needs_grammar)
    is_scored = request.top_logprobs is not None and (sampler.scale != 1.0 or bool(request.scored_tokens))
    return is_scored or request.transcript is not None or sampler.needs_all(is_masked=is_masked)


def prompt_logprobs(sequence: Sequence, scores: Scores) -> list[TokenLogprob]:
    """The log probabilities of the prompt's tokens that the scores of a step predict.

    Each is returned once, even if the prompt is read again; none if the request does not ask for them.
    """
    if not sequence.wants_positions:
        return []
    positions = scores.logits
    first = sequence.num_read - len(positions) + 1  # the token that the first position predicts
    tokens = sequence.request.prompt[sequence.num_scored : sequence.num_read + 1]
    new = positions[sequence.num_scored - first :][: len(tokens)]
    sequence.num_scored += len(tokens)
    return token_logprobs(new, tokens, sequence.request.top_logprobs or 0)


def _choose(sequence: Sequence, scores: Scores, eos: Tokens[int]) -> int | None:
    """The next token; None if the grammar allows only the end."""
    guide = sequence.guide
    banned = (*eos, *sequence.request.stop_token_ids) if _is_too_early(sequence) else ()
    if guide is None:
        return sequence.sampler.sample(scores, banned=banned)
    first = sequence.sampler.first(scores, banned=banned, draws=not sequence.request.needs_grammar)
    if first is not None and _fits(sequence, guide, first, eos):
        sequence.sampler.note(first)
        return first
    allowed = _allowed(sequence, guide, eos)
    allowed[list(banned)] = False
    if not allowed.any():
        if guide.may_end:
            return None
        raise GrammarFailed("the answer's grammar has reached a point where no token of the model fits")
    return sequence.sampler.sample(scores, allowed=allowed)


def _fits(sequence: Sequence, guide: Guide, token: int, eos: Tokens[int]) -> bool:
    """Whether the grammar allows a token. Takes far less time than `_allowed`."""
    if token in _ends(sequence, eos) and guide.may_end:
        return True
    is_ignored = sequence.request.ignore_eos and token in eos
    return not is_ignored and guide.allows(token)


def _allowed(sequence: Sequence, guide: Guide, eos: Tokens[int]) -> NDArray[np.bool_]:
    """The tokens [vocab_size] that the grammar allows, which include those that end the answer where it may end."""
    allowed = guide.allowed()
    if sequence.request.ignore_eos:
        allowed[list(eos)] = False
    if guide.may_end:
        allowed[list(_ends(sequence, eos))] = True
    return allowed


def _ends(sequence: Sequence, eos: Tokens[int]) -> Tokens[int]:
    """The tokens that end the answer now."""
    own = () if _is_too_early(sequence) else sequence.request.stop_token_ids
    return own if sequence.request.ignore_eos else (*eos, *own)


def _commit(sequence: Sequence, token: int) -> None:
    """Advance the grammar by a token. A failing grammar that the request does not require is dropped."""
    if sequence.guide is None:
        return
    try:
        sequence.guide.commit(token)
    except GrammarFailed:
        if sequence.request.needs_grammar:
            raise
        sequence.guide = None


def _is_too_early(sequence: Sequence) -> bool:
    """Whether the answer must not end yet."""
    return sequence.num_produced < sequence.request.min_tokens
