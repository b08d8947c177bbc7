"""Answers have the probabilities given by the model, sampling fields and grammar, however they are computed.

The model is a table, so the probability of each answer of at most three tokens is known. The reference is written from
the definitions and shares no code with the sampler. Seeds are fixed: the same code gives the same frequencies.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.sampling.continuation import choose_next_token
from genai_server.engine.sampling.grammar import Guidance, bytes_guidance
from genai_server.engine.scheduling.drafts import (
    MAX_MATCH,
    NO_DRAFT,
    Acceptance,
    AnswerMemory,
    Match,
    TextDrafts,
    TextIndex,
)
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, StepPolicy
from genai_server.engine.scheduling.speculation import DraftingModel
from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.scores import Logits
from genai_server.engine.sequence import Sequence
from genai_server.messages.engine_protocol import Failed, Finished, Refused, Submit, ToApi, Tokens
from genai_server.messages.generation_request import FinishReason, GenerationRequest, ModelInfo, Sampling
from tests.engine.sampling.grammars import guide
from tests.engine.scheduling.scheduled import FreePasses
from tests.stepped_loop import SteppedLoop
from tests.table_runner import TableRunner

ANSWERS = 2000
LONGEST = 3
A, B, C, X, Y, STOP, P = b"abcxyzp"
EOS = [256, 257]
VOCAB = 258
MODEL = ModelInfo(100, VOCAB, EOS, Sampling())
# After "c" only "a" is allowed, and no end. "x" and "y" are never allowed.
GRAMMAR = "start: /(a|b|ca)*/"
LIKELY = [A, B, C, X, Y, STOP, *EOS]
# Each token but the last is followed by two others, so that every first token of an answer has a draft.
PROMPT = [P, A, B, P, B, C, P, C, A, P, X, Y, P, Y, A, P]
END = -1  # follows the last token of an answer that ended before its limit

Probabilities = NDArray[np.float64]
# Tokens of an answer, and perhaps END.
Answer = tuple[int, ...]


def _table() -> NDArray[np.float32]:
    table = np.full((VOCAB, VOCAB), -80, np.float32)
    table[:, LIKELY] = np.random.default_rng(26).normal(0, 1.2, (VOCAB, len(LIKELY)))
    table[:, EOS[0]] += 1  # end tokens are as likely as in short answers
    return table


TABLE = _table()


@dataclass(frozen=True)
class Asked:
    """Fields of a request."""

    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 1.0})
    others: dict[str, Any] = field(default_factory=dict)


def bits(*tokens: int) -> bytes:
    """The vocabulary's bits with those of some tokens set."""
    found = np.zeros(VOCAB, np.bool_)
    found[list(tokens)] = True
    return np.packbits(found, bitorder="little").tobytes()


PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.4}
BIAS = {"logit_bias": {A: 1.0, C: -0.7, X: -100.0}}
FILTERS = {"top_k": 5, "top_p": 0.9, "min_p": 0.1}
ASKED = {
    "plain": Asked(),
    "cold": Asked({"temperature": 0.6}),
    "top_k": Asked({"temperature": 1.0, "top_k": 3}),
    "top_p": Asked({"temperature": 1.0, "top_p": 0.7}),
    "min_p": Asked({"temperature": 1.0, "min_p": 0.25}),
    "all filters": Asked({"temperature": 1.6, **FILTERS}),
    "penalties": Asked({"temperature": 1.0, **PENALTIES}),
    "bias": Asked({"temperature": 1.0, **BIAS}),
    "selected": Asked({"temperature": 1.0, "logit_bias": {A: 100.0, B: 100.0, Y: 100.0, EOS[0]: 100.0}}),
    "allowed tokens": Asked({"temperature": 1.0, "allowed_tokens": bits(A, B, Y, *EOS)}),
    "bad words": Asked({"temperature": 1.0, "bad_words": [[C], [A, B], [B, A, B], [P, A], [X, Y, A]]}),
    "all exclusions": Asked(
        {
            "temperature": 1.3,
            "allowed_tokens": bits(A, B, C, EOS[1]),
            "bad_words": [[A, A], [C, B]],
            **PENALTIES,
            **BIAS,
        }
    ),
    "everything": Asked({"temperature": 1.2, **FILTERS, **PENALTIES, **BIAS}, {"stop_token_ids": [STOP]}),
    "greedy": Asked({"temperature": 0.0, **PENALTIES}),
    "stop token": Asked(others={"stop_token_ids": [STOP]}),
    "least length": Asked({"temperature": 1.0, "top_p": 0.8}, {"min_tokens": 1, "stop_token_ids": [STOP]}),
    "ends ignored": Asked(others={"ignore_eos": True, "stop_token_ids": [STOP, EOS[1]]}),
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "none": {},
    "guide": {"grammar": GRAMMAR, "needs_grammar": False},
    "required": {"grammar": GRAMMAR},
}


# the reference


def expected_answers(asked: Asked, grammar: str) -> dict[Answer, float]:
    """The probability of each answer."""
    found: dict[Answer, float] = defaultdict(float)

    def follow(answer: Answer, probability: float) -> None:
        if len(answer) == LONGEST:
            found[answer] += probability
            return
        ends = _ends(asked, answer)
        chances = _next(asked, grammar, answer)
        for token in np.flatnonzero(chances > 1e-9).tolist():
            if token in ends:
                found[*answer, END] += probability * chances[token]
            else:
                follow((*answer, token), probability * chances[token])

    follow((), 1.0)
    return found


def _ends(asked: Asked, answer: Answer) -> set[int]:
    """The end tokens here."""
    if len(answer) < asked.others.get("min_tokens", 0):
        return set()
    return {*asked.others.get("stop_token_ids", []), *([] if asked.others.get("ignore_eos") else EOS)}


def _next(asked: Asked, grammar: str, answer: Answer) -> Probabilities:
    """The probabilities of the next token."""
    ends = _ends(asked, answer)
    free = np.ones(VOCAB, bool)
    if len(answer) < asked.others.get("min_tokens", 0):
        free[[*EOS, *asked.others["stop_token_ids"]]] = False
    fits = np.zeros(VOCAB, bool)
    fits[[A] if answer[-1:] == (C,) else [A, B, C, *ends]] = True
    logits = TABLE[(PROMPT[-1], *answer)[len(answer)]]
    match grammar:
        case "none":
            return reference(logits, asked.sampling, PROMPT, answer, free)
        case "required":
            return reference(logits, asked.sampling, PROMPT, answer, fits)
    return guided_reference(logits, asked.sampling, PROMPT, answer, free, fits)


def guided_reference(
    logits: Logits,
    sampling: Mapping[str, Any],
    prompt: list[int],
    answer: Answer,
    free: NDArray[np.bool_],
    fits: NDArray[np.bool_],
) -> Probabilities:
    """Draw a token without the grammar; if it does not fit, draw again among the allowed ones."""
    drawn = reference(logits, sampling, prompt, answer, free)
    if not drawn[~fits].sum():
        return drawn
    again: Probabilities = drawn[~fits].sum() * reference(logits, sampling, prompt, answer, fits)
    return np.where(fits, drawn, 0) + again


def reference(
    logits: Logits, sampling: Mapping[str, Any], prompt: list[int], answer: Answer, allowed: NDArray[np.bool_]
) -> Probabilities:
    """The probabilities of the tokens that follow prompt and answer, by the definitions of the fields."""
    scores, ids = logits.astype(np.float64), np.arange(logits.size)
    bias = sampling.get("logit_bias", {})
    for token, added in bias.items():
        scores[token] += added if abs(added) < 100 else 0
        allowed = allowed & (ids != token) if added <= -100 else allowed
    if selected := [token for token, added in bias.items() if added >= 100]:
        allowed = allowed & np.isin(ids, selected)
    allowed = allowed & _permitted(sampling, answer, logits.size)
    for token in {*prompt, *answer}:
        penalty = sampling.get("repetition_penalty", 1.0)
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token, count in Counter(answer).items():
        scores[token] -= count * sampling.get("frequency_penalty", 0.0) + sampling.get("presence_penalty", 0.0)
    ranked = sorted(np.flatnonzero(allowed).tolist(), key=lambda token: -scores[token])
    if sampling["temperature"] == 0:
        ranked = ranked[:1]
    weights = {
        token: math.exp((scores[token] - scores[ranked[0]]) / (sampling["temperature"] or 1)) for token in ranked
    }
    kept = ranked[: sampling.get("top_k", ids.size)]
    total, before, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        if before < sampling.get("top_p", 1.0) * total and weights[token] >= sampling.get("min_p", 0.0):
            nucleus.append(token)
        before += weights[token]
    probabilities = np.zeros(ids.size)
    probabilities[nucleus] = [weights[token] for token in nucleus]
    probabilities /= probabilities.sum()
    return probabilities


def _permitted(sampling: Mapping[str, Any], answer: Answer, vocab_size: int) -> NDArray[np.bool_]:
    """The tokens that are among the allowed ones and complete no bad word."""
    ids = np.arange(vocab_size)
    found = np.ones(vocab_size, np.bool_)
    if given := sampling.get("allowed_tokens"):
        found = np.array([given[token // 8] >> (token % 8) & 1 for token in ids], np.bool_)
    for word in sampling.get("bad_words", []):
        begins = len(answer) - len(word) + 1
        if begins >= 0 and answer[begins:] == tuple(word[:-1]):
            found &= ids != word[-1]
    return found


def deviation(counts: Counter[Answer], expected: Mapping[Answer, float]) -> float:
    """Pearson's chi-squared of the frequencies, as standard deviations of a normal distribution.

    Wilson and Hilferty's approximation. Answers that are expected less than five times count as one.
    """
    number = counts.total()
    often = [answer for answer, probability in expected.items() if number * probability >= 5]
    pairs = [(counts[answer], number * expected[answer]) for answer in often]
    rest = number - sum(wanted for _, wanted in pairs)
    if rest >= 5:
        pairs.append((number - sum(found for found, _ in pairs), rest))
    degrees = len(pairs) - 1
    if not degrees:
        return 0.0
    squared = sum((found - wanted) ** 2 / wanted for found, wanted in pairs)
    return float(((squared / degrees) ** (1 / 3) - 1 + 2 / (9 * degrees)) / math.sqrt(2 / (9 * degrees)))


# the sampler


def chosen(asked: Asked, grammar: str, number: int, runner: TableRunner | None = None) -> list[Answer]:
    """The answers with the seeds from 0 to `number`, computed from the table's logits alone."""
    found: list[Answer] = []
    runner, guidance = runner or TableRunner(MODEL, TABLE), guided()
    for seed in range(number):
        request = _request(asked, grammar, seed)
        guided_by = None if request.grammar is None else guidance.guide(request.grammar)
        sequence = Sequence(seed, (0, seed), request, lambda: 0.0, guided_by)
        reason = None
        while reason is None:
            read = ScheduledChunk(sequence, sequence.tokens[-1:], decodes=True)
            reason = choose_next_token(sequence, runner.forward([read])[0], EOS).reason
        found.append(_answer(sequence.tokens[len(PROMPT) :], reason))
    return found


def guided() -> Guidance:
    """Guidance with the compiled grammar."""
    guidance = bytes_guidance(MODEL)
    guide(guidance, GRAMMAR)
    return guidance


def _request(asked: Asked, grammar: str, seed: int, **fields: Any) -> GenerationRequest:
    sampling = Sampling(**asked.sampling, seed=seed)
    fields = {"cache_prompt": False, **asked.others, **GRAMMARS[grammar], **fields}
    return GenerationRequest("r", PROMPT, LONGEST, 100, sampling=sampling, **fields)


def _answer(tokens: list[int], reason: FinishReason) -> Answer:
    assert reason in (FinishReason.STOP, FinishReason.LENGTH)
    return (*tokens, END) if reason is FinishReason.STOP else tuple(tokens)


@cache
def _first_chosen(name: str, grammar: str) -> list[Answer]:
    return chosen(ASKED[name], grammar, 15)


def first_chosen(name: str, grammar: str, number: int) -> list[Answer]:
    """The answers with the seeds from 0 to `number`, at most 15, which several tests compare with."""
    return _first_chosen(name, grammar)[:number]


@pytest.mark.slow
@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("name", ASKED)
def test_answers_have_their_probabilities(name: str, grammar: str) -> None:
    expected = expected_answers(ASKED[name], grammar)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-6)
    counts = Counter(chosen(ASKED[name], grammar, ANSWERS if name != "greedy" else 20))
    assert counts.keys() <= expected.keys()
    assert deviation(counts, expected) < 4


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("name", ASKED)
def test_answers_from_the_best_logits_are_those_from_all(name: str, grammar: str) -> None:
    for num_best in (1, 5):
        offering = TableRunner(MODEL, TABLE, num_best=num_best)
        assert chosen(ASKED[name], grammar, 12, offering) == first_chosen(name, grammar, 12)
        assert offering.num_fetched <= offering.num_offered


# the engine


class Device(SteppedLoop):
    """A loop with the table as its model."""

    def __init__(
        self,
        folder: Path,
        *,
        rows: int = 1,
        drafts: bool = False,
        remembers: bool = False,
        draft_model: DraftingModel | None = None,
        num_best: int = 0,
    ) -> None:
        self.runner = TableRunner(MODEL, TABLE, num_best=num_best)
        self._rows = rows
        self.finished: list[Finished] = []
        self._tokens: dict[int, list[int]] = {}
        policy = StepPolicy(speculates=drafts, answers=AnswerMemory(10**6) if remembers else None)
        scheduler = Scheduler(self.runner, max_running=rows, max_waiting=1, prefill_chunk=64, policy=policy)
        if draft_model is not None:
            scheduler.draft_with(draft_model)
        super().__init__(LoadedModel(ScriptedRunner(), self.runner), scheduler, guided(), folder, clock=lambda: 0.0)

    def answers(self, asked: Asked, grammar: str, number: int, **fields: Any) -> list[Answer]:
        """The answers with the seeds from 0 to `number`."""
        self.finished.clear()
        self._tokens.clear()
        while len(self.finished) < number:
            while len(self._tokens) < min(number, len(self.finished) + self._rows):
                seed = len(self._tokens)
                self._tokens[seed] = []
                self.put(Submit(seed, _request(asked, grammar, seed, **fields)))
            self.steps(1)
        ended = {end.key: end.reason for end in self.finished}
        return [_answer(self._tokens[seed], ended[seed]) for seed in range(number)]

    def _receive(self, connection: int, messages: list[ToApi]) -> None:
        for message in messages:
            assert not isinstance(message, Failed | Refused), message
            if isinstance(message, Tokens):
                self._tokens[message.key] += message.tokens
            elif isinstance(message, Finished):
                self.finished.append(message)


class TableDrafts:
    """A draft model that draws its drafts, in which the likely tokens are more likely. It has read all sequences."""

    is_parallel = False

    def __init__(self) -> None:
        self.times: StepTimeModel = FreePasses()
        self._random = np.random.default_rng(7)

    def room(self, sequence: Sequence) -> int:
        return LONGEST

    def num_unread(self, sequence: Sequence) -> int:
        return 1

    def propose(self, wanted: Any, chunks: Any) -> list[list[int]]:
        assert not chunks
        return [self._drawn(sequence.tokens[-1], length) for sequence, length in wanted]

    def _drawn(self, token: int, length: int) -> list[int]:
        found: list[int] = []
        for _ in range(length):
            noise = self._random.gumbel(0, 0.5, VOCAB)
            found.append(token := int((TABLE[token] + noise).argmax()))
        return found

    def close(self, sequence: int) -> None:
        pass


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch, passes_of_any_length_take_the_same_time: None) -> None:
    """Sequences with seeds have drafts, too, and all drafts are assumed to pay."""
    monkeypatch.setattr(TableRunner, "may_draft", lambda *_: True)


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize(("rows", "fields"), [(1, {}), (8, {}), (8, {"exact": True})])
def test_answers_are_the_same_alone_in_a_batch_and_exact(
    tmp_path: Path, rows: int, fields: dict[str, Any], grammar: str
) -> None:
    device = Device(tmp_path, rows=rows)
    for name, asked in ASKED.items():
        assert device.answers(asked, grammar, 8, **fields) == first_chosen(name, grammar, 8)
    assert (device.runner.max_rows_seen > 1) == (rows > 1)


# How many of the best logits a device returns unasked; 0 for a runner that gives all.
NUM_BEST = [0, pytest.param(4, marks=pytest.mark.slow)]


@pytest.mark.parametrize("num_best", NUM_BEST)
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_answers_are_the_same_with_drafts(tmp_path: Path, drafts: None, grammar: str, num_best: int) -> None:
    device, ends = Device(tmp_path, drafts=True, num_best=num_best), []
    for name, asked in ASKED.items():
        assert device.answers(asked, grammar, 15) == first_chosen(name, grammar, 15)
        ends += device.finished
    assert 0 < sum(end.num_accepted for end in ends) < sum(end.num_drafted for end in ends)


@pytest.mark.slow
@pytest.mark.parametrize("num_best", NUM_BEST)
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_answers_with_drafts_have_their_probabilities(
    tmp_path: Path, drafts: None, grammar: str, num_best: int
) -> None:
    expected = expected_answers(ASKED["plain"], grammar)
    counts = Counter(Device(tmp_path, drafts=True, num_best=num_best).answers(ASKED["plain"], grammar, ANSWERS))
    assert counts.keys() <= expected.keys()
    assert deviation(counts, expected) < 4


# Names of fields and grammars.
COUNTED_AGAIN = [("top_p", "none"), ("penalties", "none"), ("bias", "required"), ("everything", "guide")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "grammar"), COUNTED_AGAIN)
def test_drafts_from_answers_keep_the_probabilities(
    tmp_path: Path, drafts: None, monkeypatch: pytest.MonkeyPatch, name: str, grammar: str
) -> None:
    """The same question again and again: what follows the first token is drafted from the answer before."""
    lengths: list[int] = []
    following = TextIndex.following

    def note(index: TextIndex, match: Match, number: int) -> list[int]:
        lengths.append(match.length)
        return following(index, match, number)

    monkeypatch.setattr(TextIndex, "following", note)
    device = Device(tmp_path, drafts=True, remembers=True)
    found = device.answers(ASKED[name], grammar, ANSWERS, answer_memory="key", cache_prompt=True)
    assert found[:40] == chosen(ASKED[name], grammar, 40)
    assert deviation(Counter(found), expected_answers(ASKED[name], grammar)) < 4
    assert lengths.count(MAX_MATCH) > 0.8 * len(lengths)
    drafted, accepted = sum(e.num_drafted for e in device.finished), sum(e.num_accepted for e in device.finished)
    assert ANSWERS / 20 < accepted < 0.9 * drafted


# a draft model


@pytest.fixture
def only_the_model_drafts(drafts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextDrafts, "propose", lambda *_: NO_DRAFT)
    monkeypatch.setattr(Acceptance, "share", 0.9)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_answers_are_the_same_with_a_draft_model(tmp_path: Path, only_the_model_drafts: None, grammar: str) -> None:
    device, ends = Device(tmp_path, rows=4, drafts=True, draft_model=TableDrafts()), []
    for name, asked in ASKED.items():
        assert device.answers(asked, grammar, 15) == first_chosen(name, grammar, 15)
        ends += device.finished
    assert 0 < sum(end.num_accepted for end in ends) < sum(end.num_drafted for end in ends)


@pytest.mark.slow
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_answers_with_a_draft_model_have_their_probabilities(
    tmp_path: Path, only_the_model_drafts: None, grammar: str
) -> None:
    asked = Asked({"temperature": 1.0, "top_p": 0.9, **PENALTIES, **BIAS})
    expected = expected_answers(asked, grammar)
    device = Device(tmp_path, drafts=True, draft_model=TableDrafts())
    counts = Counter(device.answers(asked, grammar, ANSWERS))
    assert sum(end.num_accepted for end in device.finished) > ANSWERS / 25
    assert counts.keys() <= expected.keys()
    assert deviation(counts, expected) < 4
