"""Answers that repeat themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.generation.answers import IN_THOUGHTS_AND_CALLS, RepetitionDetector, RepetitionRule
from genai_server.text.answers.reasoning import HARMONY, MISTRAL_THINK, THINK, ReasoningFormat
from tests.text.parsing import parser


@pytest.mark.parametrize(
    ("rule", "tokens", "applies"),
    [
        (RepetitionRule(1, 3, 3), [7, 1, 2, 1, 2, 1, 2], True),
        (RepetitionRule(1, 3, 3), [1, 2, 1, 2, 1, 2, 1], True),
        (RepetitionRule(1, 3, 3), [2, 1, 2, 1, 2], False),
        (RepetitionRule(1, 3, 3), [1, 2, 1, 2, 1, 2, 7], False),
        (RepetitionRule(1, 3, 3), [7, 7, 7], True),
        (RepetitionRule(2, 3, 3), [7, 7, 7, 7, 7], False),
        (RepetitionRule(2, 3, 3), [7, 7, 7, 7, 7, 7], True),
        (RepetitionRule(1, 1, 2), [1, 2, 1, 2], False),
        (RepetitionRule(1, 2, 2, min_tokens=6), [1, 2, 1, 2], False),
        (RepetitionRule(1, 2, 2, min_tokens=6), [1, 2, 1, 2, 1, 2], True),
        (RepetitionRule(1, 2, 2), [], False),
    ],
)
def test_a_rule_applies_to_what_is_repeated_often_enough(
    rule: RepetitionRule, tokens: list[int], *, applies: bool
) -> None:
    assert rule.applies(tokens) is applies


@given(
    tokens=st.lists(st.integers(0, 2), max_size=24),
    rule=st.builds(RepetitionRule, st.integers(1, 3), st.integers(3, 6), st.integers(2, 4), st.integers(0, 12)),
)
def test_a_rule_finds_exactly_the_periods_of_the_end(tokens: list[int], rule: RepetitionRule) -> None:
    def has_period(pattern: int) -> bool:
        length = max(rule.min_count * pattern, rule.min_tokens)
        return length <= len(tokens) and all(tokens[-i] == tokens[-i - pattern] for i in range(1, length - pattern + 1))

    assert rule.applies(tokens) is any(map(has_period, range(rule.min_pattern, rule.max_pattern + 1)))


@pytest.mark.parametrize("pattern", [1, 5, 63, 64, 256])
def test_a_loop_in_a_thought_is_found_once_it_is_long(pattern: int) -> None:
    found = RepetitionDetector(None)
    ends_at = next(at for at in range(5000) if found.repeats(at % pattern, is_within=True))
    assert max(8 * pattern, 512) <= ends_at + 1 < max(8 * pattern, 512) + 16


def test_other_text_longer_patterns_and_what_came_before_a_thought_do_not_count() -> None:
    for pattern, is_within in ((257, True), (5, False)):
        found = RepetitionDetector(None)
        assert not any(found.repeats(at % pattern, is_within=is_within) for at in range(5000))
    found = RepetitionDetector(None)
    assert not any(found.repeats(1, is_within=False) for _ in range(1000))
    assert not any(found.repeats(1, is_within=True) for _ in range(511))
    assert any(found.repeats(1, is_within=True) for _ in range(16))


def test_a_rule_of_the_request_is_for_all_of_the_answer() -> None:
    found = RepetitionDetector(RepetitionRule(1, 2, 3))
    assert [found.repeats(token, is_within=False) for token in (1, 2, 1, 2, 1, 2)] == [*[False] * 5, True]
    assert IN_THOUGHTS_AND_CALLS.min_tokens == 512


CALL = '<tool_call>{"name": "now", "arguments": {"a": "b'


@pytest.mark.parametrize(
    ("text", "form", "is_within"),
    [
        ("<think>a", THINK, True),
        ("<think>\n\n", THINK, True),
        ("<think>a</think>", THINK, False),
        ("<think>a</think>\n\nb", THINK, False),
        ("[THINK]a", MISTRAL_THINK, True),
        ("a", THINK, False),
        ("a", None, False),
        ("<|channel|>analysis<|message|>a", HARMONY, True),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", HARMONY, False),
        (CALL, None, True),
        (f"a{CALL}", THINK, True),
        (f'{CALL}"}}}}</tool_call>', None, False),
        (f'{CALL}"}}}}</tool_call>c', None, False),
    ],
)
@pytest.mark.parametrize("only_complete", [False, True])
def test_the_parser_knows_thoughts_and_calls(
    text: str, form: ReasoningFormat | None, *, is_within: bool, only_complete: bool
) -> None:
    found = parser("hermes", reasoning=form, only_complete_calls=only_complete)
    for letter in text:
        found.feed(letter)
    assert found.is_within is is_within
