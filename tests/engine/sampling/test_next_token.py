"""The results of a sequence's logits: tokens, their log probabilities, and the end."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.engine.runners.scores import Logits, Scores
from genai_server.engine.sampling.grammar import Guide, bytes_guidance
from genai_server.engine.sampling.next_token import NextToken, choose_next_token, prompt_logprobs, token_logprob
from genai_server.engine.sequence import Sequence
from genai_server.errors import GrammarFailed, InvalidField
from genai_server.messages.generation_request import FinishReason, GenerationRequest, ModelInfo, Sampling, TokenLogprob
from tests.engine.sampling.grammars import AMBIGUOUS, guide

VOCAB = 258
EOS = [256, 257]
GUIDANCE = bytes_guidance(ModelInfo(100, VOCAB, EOS, Sampling()))


def sequence(grammar: str | None = None, prompt: tuple[int, ...] = (1, 2, 3), **fields: Any) -> Sequence:
    values: dict[str, Any] = {"max_tokens": 50, "max_length": 100} | fields
    request = GenerationRequest("r", list(prompt), grammar=grammar, **values)
    return Sequence(0, (0, 0), request, lambda: 0.0, None if grammar is None else guide(GUIDANCE, grammar))


def favoring(*tokens: int) -> Logits:
    """Logits whose highest values are these tokens, in this order."""
    logits = np.linspace(0, 1, VOCAB, dtype=np.float32)[::-1].copy()
    for place, token in enumerate(tokens):
        logits[token] = 20.0 - place
    return logits


def step(sequence: Sequence, *tokens: int) -> NextToken:
    return choose_next_token(sequence, Scores(favoring(*tokens)[np.newaxis]), EOS)


# without a grammar


def test_token_chosen_among_the_best_is_an_id_not_an_index() -> None:
    best = Scores(np.array([[9, 8, 7]], np.float32), np.array([40, 70, 10]))
    assert choose_next_token(sequence(), best, EOS).tokens == [40]
    found = sequence(sampling=Sampling(1.0, top_k=3, seed=1))
    tokens = [token for _ in range(30) for token in choose_next_token(found, best, EOS).tokens]
    assert set(tokens) == {40, 70, 10}


def test_chosen_token_is_appended_and_returned() -> None:
    found = sequence()
    assert step(found, 65) == NextToken([65])
    assert found.tokens == [1, 2, 3, 65]


def test_stop_token_ids_end_an_answer_with_ignore_eos() -> None:
    found = sequence(stop_token_ids=[65, 66], ignore_eos=True)
    assert step(found, 256).tokens == [256]
    assert step(found, 66) == NextToken(reason=FinishReason.STOP)
    assert found.num_produced == 1


@pytest.mark.parametrize("grammar", [None, "start: /[A-C]+/"])
def test_no_stop_token_is_chosen_too_early(grammar: str | None) -> None:
    found = sequence(grammar, stop_token_ids=[65], min_tokens=1)
    assert step(found, 65, 67).tokens == [67]
    assert step(found, 65, 67) == NextToken(reason=FinishReason.STOP)


@pytest.mark.parametrize("eos", EOS)
def test_any_end_token_ends_the_answer_and_is_not_part_of_it(eos: int) -> None:
    found = sequence()
    assert step(found, eos) == NextToken(reason=FinishReason.STOP)
    assert found.num_produced == 0


def test_ignored_end_tokens_are_tokens_like_others() -> None:
    assert step(sequence(ignore_eos=True), 256) == NextToken([256])


def test_last_token_within_the_limit_ends_the_answer() -> None:
    found = sequence(max_tokens=2)
    assert step(found, 65) == NextToken([65])
    assert step(found, 66) == NextToken([66], reason=FinishReason.LENGTH)


@pytest.mark.parametrize("limits", [{"max_tokens": 0}, {"max_length": 3}])
def test_limit_of_zero_tokens_yields_none(limits: dict[str, Any]) -> None:
    found = sequence(**limits)
    assert step(found, 65) == NextToken(reason=FinishReason.LENGTH)
    assert found.num_produced == 0


def test_nothing_ends_an_answer_before_min_tokens() -> None:
    found = sequence(min_tokens=2)
    outcomes = [step(found, 256, 257, 65) for _ in range(3)]
    assert outcomes == [NextToken([65]), NextToken([65]), NextToken(reason=FinishReason.STOP)]


def test_bias_that_leaves_no_token_is_a_client_error() -> None:
    with pytest.raises(InvalidField):
        step(sequence(min_tokens=1, sampling=Sampling(logit_bias={256: 100.0})), 65)


# log probabilities


def test_logprob_is_the_models_despite_sampling_parameters() -> None:
    sampling = Sampling(0.01, repetition_penalty=1.5, logit_bias={65: 50.0}, presence_penalty=1.0)
    found = sequence("start: /[A-C]+/", sampling=sampling, top_logprobs=3)
    logits = favoring(90, 66, 65)
    outcome = choose_next_token(found, Scores(logits[np.newaxis]), EOS)
    assert outcome.tokens == [65]
    assert outcome.logprobs == [token_logprob(logits, 65, 3)]
    assert [token for token, _ in outcome.logprobs[0].top] == [90, 66, 65]


def test_zero_top_logprobs_return_the_tokens_own_only() -> None:
    (found,) = step(sequence(top_logprobs=0), 65).logprobs
    assert (found.token, found.top) == (65, [])


# a grammar


def test_grammar_restricts_tokens_up_to_its_end() -> None:
    found = sequence('start: "ab" | "cd"')
    assert step(found, 90, 99, 97) == NextToken([99])
    assert step(found, 90, 98) == NextToken([100], reason=FinishReason.STOP)


@pytest.mark.parametrize("eos", EOS)
def test_every_end_token_ends_a_grammar_that_may_end(eos: int) -> None:
    found = sequence("start: /a+/")
    assert step(found, eos) == NextToken([97])
    assert step(found, eos) == NextToken(reason=FinishReason.STOP)


def test_ignore_eos_continues_as_long_as_the_grammar_can() -> None:
    found = sequence("start: /a{1,3}/", ignore_eos=True)
    outcomes = [step(found, 256, 257) for _ in range(3)]
    assert outcomes == [NextToken([97]), NextToken([97]), NextToken([97], reason=FinishReason.STOP)]


def test_min_tokens_holds_as_long_as_the_grammar_continues() -> None:
    found = sequence("start: /a{1,3}/", min_tokens=2)
    outcomes = [step(found, 256) for _ in range(3)]
    assert outcomes == [NextToken([97]), NextToken([97]), NextToken(reason=FinishReason.STOP)]
    short = sequence('start: "a"', min_tokens=2)
    assert step(short, 256) == NextToken([97], reason=FinishReason.STOP)


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 1}, {}])
def test_empty_grammar_gives_an_empty_answer(fields: dict[str, Any]) -> None:
    assert step(sequence('start: ""', **fields), 65) == NextToken(reason=FinishReason.STOP)


def test_complete_grammar_stops_at_the_token_limit() -> None:
    assert step(sequence('start: "a"', max_tokens=1), 65) == NextToken([97], reason=FinishReason.STOP)


def test_an_answer_that_is_cut_off_by_its_limit_says_so() -> None:
    assert step(sequence('start: "ab"', max_tokens=1), 65) == NextToken([97], reason=FinishReason.LENGTH)


def test_bias_against_all_allowed_tokens_is_a_client_error() -> None:
    with pytest.raises(InvalidField, match="grammar"):
        step(sequence('start: "a"', sampling=Sampling(logit_bias={97: -100.0})), 65)


def test_a_grammar_that_cannot_go_on_fails() -> None:
    found = sequence(AMBIGUOUS, max_tokens=200, max_length=300)
    with pytest.raises(GrammarFailed, match="grammar"):
        for _ in range(150):
            step(found, ord("x"))


def test_fitting_greedy_token_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sequence('start: "ab"')
    with monkeypatch.context() as without:
        without.delattr(Guide, "allowed")
        assert step(found, ord("a")).tokens == [ord("a")]
        with pytest.raises(AttributeError, match="allowed"):
            step(found, ord("x"), ord("b"))
    assert step(found, ord("x"), ord("b")).tokens == [ord("b")]


def test_refused_draw_is_repeated_with_the_same_probabilities() -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[[ord("a"), ord("b"), ord("c")]] = np.log([0.5, 0.3, 0.2])
    counts = Counter[int]()
    for seed in range(1000):
        found = sequence('start: "a" | "c"', sampling=Sampling(1.0, seed=seed), needs_grammar=False)
        counts.update(choose_next_token(found, Scores(logits[np.newaxis]), EOS).tokens)
    assert counts.keys() == {ord("a"), ord("c")}
    assert abs(counts[ord("a")] / 1000 - 5 / 7) < 0.04


def test_a_guide_that_fails_at_a_token_ends_no_answer() -> None:
    found = sequence(AMBIGUOUS, needs_grammar=False, max_tokens=200, max_length=300)
    assert [step(found, ord("x")).reason for _ in range(150)] == [None] * 150
    assert found.guide is None


def test_a_bias_against_all_that_fits_a_guide_drops_the_guide() -> None:
    bias = Sampling(logit_bias={97: -100.0})
    found = sequence('start: "a" | "b"', needs_grammar=False, sampling=bias)
    assert step(found, 65, 98).tokens == [98]
    found = sequence('start: "a"', needs_grammar=False, sampling=bias)
    assert step(found, 65) == NextToken([65])
    assert found.guide is None


@pytest.mark.parametrize("needs_grammar", [False, True])
def test_a_stop_token_that_fits_no_grammar_ends_one_that_may_end(needs_grammar: bool) -> None:
    found = sequence("start: /a+/", stop_token_ids=[90], needs_grammar=needs_grammar, ignore_eos=True)
    assert step(found, 90, 256) == NextToken([97])
    assert step(found, 256, 90) == NextToken(reason=FinishReason.STOP)


# the prompt's log probabilities


def passes(found: Sequence, positions: Logits, ends: list[int]) -> list[TokenLogprob]:
    """The log probabilities that are sent when the prompt is read in passes with these ends."""
    logprobs, begin = [], found.num_read
    for end in ends:
        wanted = found.wants_positions
        found.num_read = end
        logprobs += prompt_logprobs(found, positions[begin:end] if wanted else positions[end - 1 : end])
        begin = end
    return logprobs


PROMPT = tuple(range(40, 60))
POSITIONS = np.random.default_rng(3).normal(size=(len(PROMPT), VOCAB)).astype(np.float32)


@given(st.sets(st.integers(1, len(PROMPT) - 1)))
def test_prompt_logprobs_are_returned_once_for_any_division(ends: set[int]) -> None:
    found = sequence(prompt=PROMPT, prompt_logprobs=True, top_logprobs=2)
    expected = [token_logprob(POSITIONS[i], PROMPT[i + 1], 2) for i in range(len(PROMPT) - 1)]
    assert passes(found, POSITIONS, [*sorted(ends), len(PROMPT)]) == expected


@given(st.integers(1, len(PROMPT)), st.sets(st.integers(1, len(PROMPT) - 1)))
def test_recomputed_prompt_logprobs_are_not_repeated(before: int, ends: set[int]) -> None:
    found = sequence(prompt=PROMPT, prompt_logprobs=True)
    logprobs = passes(found, POSITIONS, [before])
    found.num_read = 0
    logprobs += passes(found, POSITIONS, [*sorted(ends), len(PROMPT)])
    assert logprobs == [token_logprob(POSITIONS[i], PROMPT[i + 1], 0) for i in range(len(PROMPT) - 1)]


def test_prompt_logprobs_are_absent_unless_requested() -> None:
    assert passes(sequence(prompt=PROMPT, top_logprobs=5), POSITIONS, [7, 20]) == []


def test_a_prompt_of_one_token_has_none() -> None:
    found = sequence(prompt=(5,), prompt_logprobs=True)
    assert not found.wants_positions
    assert passes(found, POSITIONS, [1]) == []


def test_tokens_that_the_answer_adds_are_not_the_prompts() -> None:
    found = sequence(prompt=PROMPT, prompt_logprobs=True)
    assert len(passes(found, POSITIONS, [len(PROMPT)])) == len(PROMPT) - 1
    found.append(65)
    found.num_read += 1
    assert prompt_logprobs(found, POSITIONS[:1]) == []
