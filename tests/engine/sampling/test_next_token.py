"""What a sequence's logits make of it: tokens, their log probabilities, and the end."""

from collections import Counter
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.engine.runners.scores import Logits, Scores
from genai_server.engine.sampling.grammar import Compiled, Guide, bytes_guidance
from genai_server.engine.sampling.logprobs import token_logprob
from genai_server.engine.sampling.next_token import NextToken, choose_next_token, prompt_logprobs
from genai_server.engine.sequence import Sequence
from genai_server.errors import GrammarFailed, InvalidField
from genai_server.generation import FinishReason, GenerationRequest, ModelInfo, Sampling, TokenLogprob

VOCAB = 258
EOS = [256, 257]
# A rule that can be read in ever more ways the longer the answer is.
AMBIGUOUS = 'start: a\na: a a | "x" | "x" a "x" a'
GUIDANCE = bytes_guidance(ModelInfo(100, VOCAB, EOS, Sampling()))


def sequence(grammar: str | None = None, prompt: tuple[int, ...] = (1, 2, 3), **fields: Any) -> Sequence:
    values: dict[str, Any] = {"max_tokens": 50, "max_length": 100} | fields
    guide = None
    if grammar is not None:
        done: SimpleQueue[Compiled] = SimpleQueue()
        GUIDANCE.compile(grammar, done.put)
        GUIDANCE.keep(grammar, done.get(timeout=10))
        guide = GUIDANCE.guide(grammar)
    request = GenerationRequest("r", list(prompt), grammar=grammar, **values)
    return Sequence(0, (0, 0), request, lambda: 0.0, guide)


def likeliest(*tokens: int) -> Logits:
    """Logits with these on top, the first first."""
    logits = np.linspace(0, 1, VOCAB, dtype=np.float32)[::-1].copy()
    for place, token in enumerate(tokens):
        logits[token] = 20.0 - place
    return logits


def step(sequence: Sequence, *tokens: int) -> NextToken:
    return choose_next_token(sequence, Scores(likeliest(*tokens)[np.newaxis]), EOS)


# without a grammar


def test_of_the_best_alone_it_is_the_token_that_is_chosen_not_its_place() -> None:
    best = Scores(np.array([[9, 8, 7]], np.float32), np.array([40, 70, 10]))
    assert choose_next_token(sequence(), best, EOS).tokens == [40]
    found = sequence(sampling=Sampling(1.0, top_k=3, seed=1))
    tokens = [token for _ in range(30) for token in choose_next_token(found, best, EOS).tokens]
    assert set(tokens) == {40, 70, 10}


def test_a_token_is_taken_and_told() -> None:
    found = sequence()
    assert step(found, 65) == NextToken([65])
    assert found.tokens == [1, 2, 3, 65]


def test_a_stop_token_of_the_request_ends_the_answer_even_if_it_ignores_the_models() -> None:
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


def test_the_last_token_that_there_is_room_for_ends_the_answer() -> None:
    found = sequence(max_tokens=2)
    assert step(found, 65) == NextToken([65])
    assert step(found, 66) == NextToken([66], reason=FinishReason.LENGTH)


@pytest.mark.parametrize("limits", [{"max_tokens": 0}, {"max_length": 3}])
def test_where_no_token_is_wanted_none_comes(limits: dict[str, Any]) -> None:
    found = sequence(**limits)
    assert step(found, 65) == NextToken(reason=FinishReason.LENGTH)
    assert found.num_produced == 0


def test_nothing_ends_an_answer_before_its_least_tokens() -> None:
    found = sequence(min_tokens=2)
    outcomes = [step(found, 256, 257, 65) for _ in range(3)]
    assert outcomes == [NextToken([65]), NextToken([65]), NextToken(reason=FinishReason.STOP)]


def test_a_bias_that_leaves_nothing_is_the_requests_own_mistake() -> None:
    with pytest.raises(InvalidField):
        step(sequence(min_tokens=1, sampling=Sampling(logit_bias={256: 100.0})), 65)


# log probabilities


def test_a_token_comes_with_the_models_log_probability_whatever_was_done_to_it() -> None:
    sampling = Sampling(0.01, repetition_penalty=1.5, logit_bias={65: 50.0}, presence_penalty=1.0)
    found = sequence("start: /[A-C]+/", sampling=sampling, top_logprobs=3)
    logits = likeliest(90, 66, 65)
    outcome = choose_next_token(found, Scores(logits[np.newaxis]), EOS)
    assert outcome.tokens == [65]
    assert outcome.logprobs == [token_logprob(logits, 65, 3)]
    assert [token for token, _ in outcome.logprobs[0].top] == [90, 66, 65]


def test_with_none_of_the_likeliest_a_token_has_only_its_own() -> None:
    (found,) = step(sequence(top_logprobs=0), 65).logprobs
    assert (found.token, found.top) == (65, [])


# a grammar


def test_only_what_fits_the_grammar_is_taken_up_to_its_end() -> None:
    found = sequence('start: "ab" | "cd"')
    assert step(found, 90, 99, 97) == NextToken([99])
    assert step(found, 90, 98) == NextToken([100], reason=FinishReason.STOP)


@pytest.mark.parametrize("eos", EOS)
def test_where_the_grammar_may_end_any_end_token_ends_it(eos: int) -> None:
    found = sequence("start: /a+/")
    assert step(found, eos) == NextToken([97])
    assert step(found, eos) == NextToken(reason=FinishReason.STOP)


def test_with_ignored_end_tokens_the_answer_goes_on_as_long_as_the_grammar_can() -> None:
    found = sequence("start: /a{1,3}/", ignore_eos=True)
    outcomes = [step(found, 256, 257) for _ in range(3)]
    assert outcomes == [NextToken([97]), NextToken([97]), NextToken([97], reason=FinishReason.STOP)]


def test_the_least_tokens_are_kept_to_as_long_as_the_grammar_can_go_on() -> None:
    found = sequence("start: /a{1,3}/", min_tokens=2)
    outcomes = [step(found, 256) for _ in range(3)]
    assert outcomes == [NextToken([97]), NextToken([97]), NextToken(reason=FinishReason.STOP)]
    short = sequence('start: "a"', min_tokens=2)
    assert step(short, 256) == NextToken([97], reason=FinishReason.STOP)


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 1}, {}])
def test_a_grammar_of_nothing_gives_an_empty_answer(fields: dict[str, Any]) -> None:
    assert step(sequence('start: ""', **fields), 65) == NextToken(reason=FinishReason.STOP)


def test_a_complete_answer_stops_even_with_the_last_token_that_there_is_room_for() -> None:
    assert step(sequence('start: "a"', max_tokens=1), 65) == NextToken([97], reason=FinishReason.STOP)


def test_an_answer_that_is_cut_off_by_its_limit_says_so() -> None:
    assert step(sequence('start: "ab"', max_tokens=1), 65) == NextToken([97], reason=FinishReason.LENGTH)


def test_a_bias_against_all_that_fits_is_the_requests_own_mistake() -> None:
    with pytest.raises(InvalidField, match="grammar"):
        step(sequence('start: "a"', sampling=Sampling(logit_bias={97: -100.0})), 65)


def test_a_grammar_that_cannot_go_on_fails() -> None:
    found = sequence(AMBIGUOUS, max_tokens=1000, max_length=2000)
    with pytest.raises(GrammarFailed, match="grammar"):
        for _ in range(1000):
            step(found, ord("x"))


def test_a_greedy_token_that_fits_needs_no_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sequence('start: "ab"')
    with monkeypatch.context() as without:
        without.delattr(Guide, "allowed")
        assert step(found, ord("a")).tokens == [ord("a")]
        with pytest.raises(AttributeError, match="allowed"):
            step(found, ord("x"), ord("b"))
    assert step(found, ord("x"), ord("b")).tokens == [ord("b")]


def test_where_the_grammar_is_not_needed_a_refused_draw_is_drawn_again_with_the_same_probabilities() -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[[ord("a"), ord("b"), ord("c")]] = np.log([0.5, 0.3, 0.2])
    counts = Counter[int]()
    for seed in range(2000):
        found = sequence('start: "a" | "c"', sampling=Sampling(1.0, seed=seed), needs_grammar=False)
        counts.update(choose_next_token(found, Scores(logits[np.newaxis]), EOS).tokens)
    assert counts.keys() == {ord("a"), ord("c")}
    assert abs(counts[ord("a")] / 2000 - 5 / 7) < 0.04


def test_a_guide_that_fails_at_a_token_ends_no_answer() -> None:
    found = sequence(AMBIGUOUS, needs_grammar=False, max_tokens=400, max_length=500)
    assert [step(found, ord("x")).reason for _ in range(300)] == [None] * 300
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
    """What is told when the prompt is read up to each of these ends, as the runners' pair and the loop do it."""
    told, begin = [], found.num_read
    for end in ends:
        wanted = found.wants_positions
        found.num_read = end
        told += prompt_logprobs(found, positions[begin:end] if wanted else positions[end - 1 : end])
        begin = end
    return told


PROMPT = tuple(range(40, 60))
POSITIONS = np.random.default_rng(3).normal(size=(len(PROMPT), VOCAB)).astype(np.float32)


@given(st.sets(st.integers(1, len(PROMPT) - 1)))
def test_each_token_of_the_prompt_but_the_first_is_told_once_however_it_is_read(ends: set[int]) -> None:
    found = sequence(prompt=PROMPT, prompt_logprobs=True, top_logprobs=2)
    expected = [token_logprob(POSITIONS[i], PROMPT[i + 1], 2) for i in range(len(PROMPT) - 1)]
    assert passes(found, POSITIONS, [*sorted(ends), len(PROMPT)]) == expected


@given(st.integers(1, len(PROMPT)), st.sets(st.integers(1, len(PROMPT) - 1)))
def test_a_prompt_that_is_read_anew_is_not_told_again(before: int, ends: set[int]) -> None:
    found = sequence(prompt=PROMPT, prompt_logprobs=True)
    told = passes(found, POSITIONS, [before])
    found.num_read = 0
    told += passes(found, POSITIONS, [*sorted(ends), len(PROMPT)])
    assert told == [token_logprob(POSITIONS[i], PROMPT[i + 1], 0) for i in range(len(PROMPT) - 1)]


def test_whoever_does_not_want_them_gets_none() -> None:
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
