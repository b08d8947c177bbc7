"""What follows from a step's logits for a sequence: its next token, log probabilities, or its end."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from genai_server.engine.runners.scores import Logits, Scores
from genai_server.engine.sampling.grammar import Guide
from genai_server.engine.sampling.logprobs import token_logprob, token_logprobs
from genai_server.engine.sequence import Sequence
from genai_server.errors import GrammarFailed
from genai_server.generation import FinishReason, TokenLogprob


@dataclass(frozen=True)
class NextToken:
    """The result of a step for one sequence."""

    # At most one.
    tokens: list[int] = field(default_factory=list)
    # One for the token, if the request wants it.
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
        return NextToken(reason=FinishReason.LENGTH)  # the request wants no token at all
    request = sequence.request
    try:
        token = _choose(sequence, scores, eos)
    except GrammarFailed:
        if request.needs_grammar:
            raise
        sequence.guide = None
        token = _choose(sequence, scores, eos)
    guide = sequence.guide
    is_own_end = token in request.stop_token_ids and not _is_too_early(sequence)
    if token is None or is_own_end or (token in eos and not request.ignore_eos):
        return NextToken(reason=FinishReason.STOP)
    sequence.append(token)
    if guide is not None:
        _commit(sequence, guide, token)
    wanted = request.top_logprobs is not None
    logprobs = [token_logprob(scores.last, token, request.top_logprobs or 0)] if wanted else []
    if guide is not None and guide.is_complete:
        return NextToken([token], logprobs, FinishReason.STOP)
    return NextToken([token], logprobs, FinishReason.LENGTH if sequence.num_left == 0 else None)


def num_choices(sequence: Sequence) -> int:
    """The number of best tokens among which `choose_next_token` chooses, if it needs nothing else of the logits;
    otherwise 0.

    It is 0 if the choice may be any token, or if probabilities are wanted.
    """
    request = sequence.request
    needs_all = sequence.guide is not None or request.top_logprobs is not None or _is_too_early(sequence)
    return 0 if needs_all else sequence.sampler.num_choices


def prompt_logprobs(sequence: Sequence, positions: Logits) -> list[TokenLogprob]:
    """The log probabilities of the prompt's tokens that the logits [positions, vocab_size] of a step predict.

    Each is given once, even if the prompt is read again; none if the request wants none.
    """
    if not sequence.wants_positions:
        return []
    first = sequence.num_read - len(positions) + 1  # the token that the first position predicts
    tokens = sequence.request.prompt[sequence.num_scored : sequence.num_read + 1]
    told = positions[sequence.num_scored - first :][: len(tokens)]
    sequence.num_scored += len(tokens)
    return token_logprobs(told, tokens, sequence.request.top_logprobs or 0)


def _choose(sequence: Sequence, scores: Scores, eos: Tokens[int]) -> int | None:
    """The next token; None if the grammar allows only the end."""
    request, guide = sequence.request, sequence.guide
    if (token := scores.chosen()) is not None:
        sequence.sampler.note(token)
        return token
    too_early = _is_too_early(sequence)
    if guide is None:
        banned = (*eos, *request.stop_token_ids) if too_early else ()
        return scores.token(sequence.sampler.sample(scores.last, banned=banned))
    first = sequence.sampler.first(scores.last, draws=not request.needs_grammar)
    if first is not None and first not in (*eos, *request.stop_token_ids) and guide.allows(first):
        sequence.sampler.note(first)
        return first
    allowed = guide.allowed()  # takes much longer
    if too_early or request.ignore_eos:
        allowed[list(eos)] = False
    if too_early:
        allowed[request.stop_token_ids] = False
    if not allowed.any():
        if guide.may_end:
            return None
        raise GrammarFailed("the answer's grammar has come to a place where no token of the model fits")
    return sequence.sampler.sample(scores.last, allowed=allowed)


def _commit(sequence: Sequence, guide: Guide, token: int) -> None:
    try:
        guide.commit(token)
    except GrammarFailed:
        if sequence.request.needs_grammar:
            raise
        sequence.guide = None


def _is_too_early(sequence: Sequence) -> bool:
    """Whether the answer must not end yet."""
    return sequence.num_produced < sequence.request.min_tokens
