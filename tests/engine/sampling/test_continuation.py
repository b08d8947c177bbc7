"""The results of a sequence's logits: tokens, their log probabilities, and the end."""

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.engine.sampling.continuation import NextToken, choose_next_token, prompt_logprobs, token_logprob
from genai_server.engine.sampling.grammar import Guidance, Guide, bytes_guidance
from genai_server.engine.scores import Logits, Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField
from genai_server.messages.generation_request import FinishReason, GenerationRequest, ModelInfo, Sampling, TokenLogprob
from tests.engine.sampling.grammars import AMBIGUOUS, guide

VOCAB = 258
EOS = [256, 257]


@cache
def guidance() -> Guidance:
    """Made by the first test, since it has a thread, which a forked process would lack."""
    return bytes_guidance(ModelInfo(100, VOCAB, EOS, Sampling()))


def sequence(grammar: str | None = None, prompt: tuple[int, ...] = (1, 2, 3), **fields: Any) -> Sequence:
    values: dict[str, Any] = {"max_tokens": 50, "max_length": 100} | fields
    request = GenerationRequest("r", list(prompt), grammar=grammar, **values)
    return Sequence(0, (0, 0), request, lambda: 0.0, None if grammar is None else guide(guidance(), grammar))


def favoring(*tokens: int) -> Logits:
    """Logits whose highest values are these tokens, in this order."""
    logits = np.linspace(0, 1, VOCAB, dtype=np.float32)[::-1].copy()
    for place, token in enumerate(tokens):
        logits[token] = 20.0 - place
    return logits


def step(sequence: Sequence, *tokens: int) -> NextToken:
    return choose_next_token(sequence, Scores(favoring(*tokens)[np.newaxis]), EOS)


# without a grammar


STOP, LENGTH = NextToken(reason=FinishReason.STOP), NextToken(reason=FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"stop_token_ids": [65, 66], "ignore_eos": True}, [([256], NextToken([256])), ([66], STOP)]),
        ({"stop_token_ids": [65], "min_tokens": 1}, [([65, 67], NextToken([67])), ([65, 67], STOP)]),
        ({}, [([256], STOP)]),
        ({}, [([257], STOP)]),
        ({"ignore_eos": True}, [([256], NextToken([256]))]),
        ({"max_tokens": 2}, [([65], NextToken([65])), ([66], NextToken([66], reason=FinishReason.LENGTH))]),
        ({"max_tokens": 0}, [([65], LENGTH)]),
        ({"max_length": 3}, [([65], LENGTH)]),
        (
            {"min_tokens": 2},
            [([256, 257, 65], NextToken([65])), ([256, 257, 65], NextToken([65])), ([256, 257, 65], STOP)],
        ),
    ],
)
def test_answer_ends_at_a_stop_token_or_a_limit(
    fields: dict[str, Any], steps: list[tuple[list[int], NextToken]]
) -> None:
    """The best tokens of each step with its outcome; a token that ends the answer is not part of it."""
    found = sequence(**fields)
    assert [step(found, *tokens) for tokens, _ in steps] == [outcome for _, outcome in steps]
    assert found.num_produced == sum(len(outcome.tokens) for _, outcome in steps)


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
    assert outcome.logprobs == [token_logprob(Scores(logits[np.newaxis]), 65, 3)]
    assert [token for token, _ in outcome.logprobs[0].top] == [90, 66, 65]


def test_zero_top_logprobs_return_the_tokens_own_only() -> None:
    (found,) = step(sequence(top_logprobs=0), 65).logprobs
    assert (found.token, found.top) == (65, [])


# a grammar


A = NextToken([97])
LAST_A = NextToken([97], reason=FinishReason.STOP)


@pytest.mark.parametrize(
    ("grammar", "fields", "steps"),
    [
        ('"ab" | "cd"', {}, [([90, 99, 97], NextToken([99])), ([90, 98], NextToken([100], reason=FinishReason.STOP))]),
        ("/a+/", {}, [([256], A), ([256], STOP)]),
        ("/a+/", {}, [([257], A), ([257], STOP)]),
        ("/[A-C]+/", {"stop_token_ids": [65], "min_tokens": 1}, [([65, 67], NextToken([67])), ([65, 67], STOP)]),
        # It continues as long as the grammar can.
        ("/a{1,3}/", {"ignore_eos": True}, [([256, 257], A), ([256, 257], A), ([256, 257], LAST_A)]),
        ("/a{1,3}/", {"min_tokens": 2}, [([256], A), ([256], A), ([256], STOP)]),
        ('"a"', {"min_tokens": 2}, [([256], LAST_A)]),
        ('""', {"ignore_eos": True}, [([65], STOP)]),
        ('""', {"min_tokens": 1}, [([65], STOP)]),
        ('""', {}, [([65], STOP)]),
        # The reason is the limit only if it cuts the answer off.
        ('"a"', {"max_tokens": 1}, [([65], LAST_A)]),
        ('"ab"', {"max_tokens": 1}, [([65], NextToken([97], reason=FinishReason.LENGTH))]),
    ],
)
def test_grammar_restricts_tokens_up_to_its_end(
    grammar: str, fields: dict[str, Any], steps: list[tuple[list[int], NextToken]]
) -> None:
    found = sequence(f"start: {grammar}", **fields)
    assert [step(found, *tokens) for tokens, _ in steps] == [outcome for _, outcome in steps]


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
    assert step(found, 256, 90) == STOP


# the prompt's log probabilities


def passes(found: Sequence, positions: Logits, ends: list[int]) -> list[TokenLogprob]:
    """The log probabilities that are sent when the prompt is read in passes with these ends."""
    logprobs, begin = [], found.num_read
    for end in ends:
        wanted = found.wants_positions
        found.num_read = end
        logprobs += prompt_logprobs(found, Scores(positions[begin:end] if wanted else positions[end - 1 : end]))
        begin = end
    return logprobs


PROMPT = tuple(range(40, 60))
POSITIONS = np.random.default_rng(3).normal(size=(len(PROMPT), VOCAB)).astype(np.float32)


@given(st.sets(st.integers(1, len(PROMPT) - 1)))
def test_prompt_logprobs_are_returned_once_for_any_division(ends: set[int]) -> None:
    found = sequence(prompt=PROMPT, prompt_logprobs=True, top_logprobs=2)
    expected = [token_logprob(Scores(POSITIONS[i : i + 1]), PROMPT[i + 1], 2) for i in range(len(PROMPT) - 1)]
    assert passes(found, POSITIONS, [*sorted(ends), len(PROMPT)]) == expected


@given(st.integers(1, len(PROMPT)), st.sets(st.integers(1, len(PROMPT) - 1)))
def test_recomputed_prompt_logprobs_are_not_repeated(before: int, ends: set[int]) -> None:
    found = sequence(prompt=PROMPT, prompt_logprobs=True)
    logprobs = passes(found, POSITIONS, [before])
    found.num_read = 0
    logprobs += passes(found, POSITIONS, [*sorted(ends), len(PROMPT)])
    assert logprobs == [token_logprob(Scores(POSITIONS[i : i + 1]), PROMPT[i + 1], 0) for i in range(len(PROMPT) - 1)]


def test_prompt_logprobs_are_absent_unless_requested_for_several_tokens() -> None:
    assert passes(sequence(prompt=PROMPT, top_logprobs=5), POSITIONS, [7, 20]) == []
    found = sequence(prompt=(5,), prompt_logprobs=True)
    assert not found.wants_positions
    assert passes(found, POSITIONS, [1]) == []


def test_tokens_that_the_answer_adds_are_not_the_prompts() -> None:
    found = sequence(prompt=PROMPT, prompt_logprobs=True)
    assert len(passes(found, POSITIONS, [len(PROMPT)])) == len(PROMPT) - 1
    found.append(65)
    found.num_read += 1
    assert prompt_logprobs(found, Scores(POSITIONS[:1])) == []
