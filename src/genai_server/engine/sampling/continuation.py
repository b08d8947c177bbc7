"""Chooses how a sequence goes on after a forward pass: with which token and log probabilities, or that the answer ends
(`choose_next_token`).

The rules for transcripts of speech are those of openai/whisper (decoding.py: SuppressTokens and ApplyTimestampRules).
If following the grammars of all sequences would take too much of a step's time, the tokens of the sequences with the
slowest grammars are chosen in other threads (`slow_grammars`, `ChoiceThreads`).
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Tokens
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from genai_server.engine.sampling.grammar import STEP_SECONDS, Guide
from genai_server.engine.sampling.sampler import top_tokens
from genai_server.engine.scores import Logits, Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import GrammarFailed, InvalidField
from genai_server.messages.generation_request import FinishReason, TokenLogprob, TranscriptRules
from genai_server.system.resources import usable_cores


def with_rules(rules: TranscriptRules, transcript: Tokens[int], logits: Logits) -> Logits:
    """Return a copy of the logits [vocab_size] that follows the rules for transcripts of speech: tokens that must not
    come after `transcript`, the tokens of the transcript so far, have minus infinity.
    """
    logits = logits.copy()
    logits[rules.suppressed] = -np.inf
    _time(rules, transcript, logits)
    return logits


def _time(rules: TranscriptRules, transcript: Tokens[int], logits: Logits) -> None:
    """Apply the rules for timestamps in a transcript: set the logits of tokens to minus infinity, in place, that must
    not come after the tokens `transcript`. Timestamps come in pairs around the text of each segment and never decrease.
    """
    first, end = rules.first_timestamp, rules.end_of_text
    texts, times = logits[:first], logits[first:]
    if not transcript:
        texts[:] = -np.inf
        times[rules.max_first + 1 :] = -np.inf
        return
    last_is_time = transcript[-1] >= first
    before_is_time = len(transcript) < 2 or transcript[-2] >= first
    if last_is_time and before_is_time:  # a segment begins here, and has text
        times[:] = -np.inf
    elif last_is_time:  # a segment ended here: either the next one begins, or the transcript ends
        at_end = logits[end]
        texts[:] = -np.inf
        logits[end] = at_end
    latest = max((token for token in transcript if token >= first), default=None)
    if latest is not None:
        # A segment is not empty, but the next one may begin where it ended.
        times[: latest - first + (0 if last_is_time and not before_is_time else 1)] = -np.inf
    best_text = texts.max()
    with np.errstate(over="ignore"):
        if best_text > -np.inf and np.exp(times - best_text).sum() > 1:  # the times together beat any one text
            texts[:] = -np.inf


def token_logprob(scores: Scores, token: int, num_top: int, scored: Tokens[int] = ()) -> TokenLogprob:
    """Return the natural log probability of `token` at the last position of `scores`. Temperature and penalties are not
    applied.

    The result also has the log probabilities of the `num_top` most likely tokens, and of the tokens in `scored`.
    """
    logits: Mapping[int, float] | Logits
    best, tokens = scores.best, [] if scores.best is None else scores.best.tokens[-1].tolist()
    if best is not None and best.scales[-1] == 1.0 and num_top <= len(tokens) and {token, *scored} <= set(tokens):
        logits, top = dict(zip(tokens, best.logits[-1].tolist(), strict=True)), tokens[:num_top]
        log_of_sum = logits[tokens[0]] - np.log(best.shares[-1])
    else:
        logits = scores.last
        top = top_tokens(logits, num_top).tolist() if num_top else []
        highest = logits.max()
        log_of_sum = highest + np.log(np.exp(logits - highest).sum(dtype=np.float64))
    alternatives = [(alternative, float(logits[alternative] - log_of_sum)) for alternative in (*top, *scored)]
    return TokenLogprob(token, float(logits[token] - log_of_sum), alternatives)


def token_logprobs(positions: Logits, tokens: Iterable[int], num_top: int) -> list[TokenLogprob]:
    """Return the natural log probability of each token in `tokens`, in order. `positions` [tokens, vocab_size] has the
    logits from which each of the tokens was chosen.

    Each result also has the log probabilities of the `num_top` most likely tokens.
    """
    pairs = zip(positions, tokens, strict=True)
    return [token_logprob(Scores(logits[np.newaxis]), token, num_top) for logits, token in pairs]


class NextToken(Struct, frozen=True):  # made for each token, in a third of the time of a dataclass
    """What `choose_next_token` has decided for a sequence: its next token with the log probability, the reason why its
    answer ends, or both.
    """

    # At most one token.
    tokens: list[int] = field(default_factory=list)
    # One for the token, if the request asks for it.
    logprobs: list[TokenLogprob] = field(default_factory=list)
    # Why the answer ends; None if it continues.
    reason: FinishReason | None = None


def choose_next_token(sequence: Sequence, scores: Scores, eos: Tokens[int]) -> NextToken:
    """Choose how a sequence goes on after a forward pass, and return the choice. A chosen token is appended to the
    sequence. `scores` has the logits after the sequence's newest token.

    A token in `eos` (end of sequence) ends the answer without being part of it, unless the request ignores these
    tokens; the request's stop tokens end it as well. An answer with a grammar also ends when no further token is
    possible. Raises GrammarFailed if the grammar cannot be followed, and InvalidField if the request's parameters
    exclude all tokens, after which the caller must end the answer.
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
    """Whether choosing a token for this sequence nearly always needs the logits of all tokens. For other sequences, a
    device copies only the highest logits to the host at first.
    """
    request, sampler = sequence.request, sequence.sampler
    # Where a grammar is only a guide, tokens are drawn without it.
    is_masked = _is_too_early(sequence) or (sequence.guide is not None and request.needs_grammar)
    is_scored = request.top_logprobs is not None and (sampler.scale != 1.0 or bool(request.scored_tokens))
    return is_scored or request.transcript is not None or sampler.needs_all(is_masked=is_masked)


def prompt_logprobs(sequence: Sequence, scores: Scores) -> list[TokenLogprob]:
    """Return the natural log probabilities of prompt tokens, if the request asks for them, after a step that has read a
    part of the prompt; otherwise an empty list. `scores` has the logits at the positions that the step has read, each
    of which predicts the next token of the prompt.

    Each token of the prompt is returned once, even if a part of the prompt is read again.
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
    """Return the next token of a sequence, chosen by its reasoning budget, grammar and sampling parameters; None if the
    grammar allows nothing but the end of the answer. `eos` has the end-of-sequence tokens.

    Raises GrammarFailed, InvalidField and RunnerFailed.
    """
    guide = sequence.guide
    if sequence.reasoning is not None:
        closing = sequence.reasoning.next_token(
            sequence.tokens, lambda token: guide is None or _fits(sequence, guide, token, eos)
        )
        if closing is not None:
            sequence.sampler.note(closing)
            return closing
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
    """Whether the sequence's grammar, which `guide` follows, allows `token` as the next token. This takes far less time
    than a mask of all allowed tokens.

    `eos` has the end-of-sequence tokens, which are allowed where the grammar may end. Raises GrammarFailed.
    """
    if token in _ends(sequence, eos) and guide.may_end:
        return True
    is_ignored = sequence.request.ignore_eos and token in eos
    return not is_ignored and guide.allows(token)


def _allowed(sequence: Sequence, guide: Guide, eos: Tokens[int]) -> NDArray[np.bool_]:
    """Return a mask [vocab_size] of the tokens that the sequence's grammar, which `guide` follows, allows next. Where
    the grammar may end, tokens that end the answer are allowed, too; `eos` has the end-of-sequence tokens. Raises
    GrammarFailed.
    """
    allowed = guide.allowed()
    if sequence.request.ignore_eos:
        allowed[list(eos)] = False
    if guide.may_end:
        allowed[list(_ends(sequence, eos))] = True
    return allowed


def _ends(sequence: Sequence, eos: Tokens[int]) -> Tokens[int]:
    """Return the tokens that end the sequence's answer if one of them comes next: those in `eos` (end of sequence) and
    the request's stop tokens, unless the request excludes them.
    """
    stop_tokens = () if _is_too_early(sequence) else sequence.request.stop_token_ids
    return stop_tokens if sequence.request.ignore_eos else (*eos, *stop_tokens)


def _commit(sequence: Sequence, token: int) -> None:
    """Advance the sequence's grammar, if it has one, by the chosen token. If the grammar fails, it is removed from the
    sequence, or GrammarFailed is raised if the request requires the grammar.
    """
    if sequence.guide is None:
        return
    try:
        sequence.guide.commit(token)
    except GrammarFailed:
        if sequence.request.needs_grammar:
            raise
        sequence.guide = None


def _is_too_early(sequence: Sequence) -> bool:
    """Whether the answer must not end yet, because it has fewer tokens than the request's `min_tokens`."""
    return sequence.num_produced < sequence.request.min_tokens


# The model's passes on CPUs also need the cores.
_CORES_PER_THREAD = 4


class ChoiceThreads:
    """Threads that choose the next tokens of sequences whose grammars are slow. The engine's loop creates one object,
    and only its thread may use it.

    A sequence takes part in no forward pass while its token is being chosen. llguidance, the library that follows
    grammars, releases the GIL while it computes masks, so the loop runs forward passes of other sequences at the same
    time.
    """

    def __init__(self, eos: list[int]) -> None:
        num_threads = max(1, usable_cores() // _CORES_PER_THREAD)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="choice")
        self._eos = eos

    def choose(self, sequence: Sequence, scores: Scores, done: Callable[[Future[NextToken]], None]) -> None:
        """Start to choose the next token of a sequence in another thread. The scores are copied, because the next
        forward pass overwrites them.

        `done` is called with a finished future, which has the NextToken or the error of `choose_next_token`, usually in
        another thread.
        """
        sequence.is_choosing = True
        self._threads.submit(choose_next_token, sequence, scores.copy(), self._eos).add_done_callback(done)


def slow_grammars(sequences: Iterable[Sequence]) -> set[Sequence]:
    """Return the sequences whose next tokens should be chosen in other threads, because all grammars together would
    take more time than a step has for them. The sequences with the fastest grammars are not among them.
    """
    costs = sorted(((s.guide.cost, s.id, s) for s in sequences if s.guide is not None), key=lambda each: each[:2])
    totals = accumulate(cost for cost, _, _ in costs)
    return {sequence for (_, _, sequence), total in zip(costs, totals, strict=True) if total > STEP_SECONDS}
