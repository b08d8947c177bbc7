"""Thoughts whose budget is used up, without a model."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.engine.sampling.continuation import choose_next_token
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.sampling.reasoning import ReasoningTracker
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.grammar_checker.compiler import byte_tokenizer
from genai_server.messages.generation_request import GenerationRequest, ReasoningRules
from genai_server.text.answers.reasoning import HARMONY, MISTRAL_THINK, THINK, ReasoningFormat, ReasoningState
from genai_server.text.grammars.grammar import after_reasoning, after_text, regex
from genai_server.text.tool_formats import harmony
from tests.engine.sampling.grammars import guide

END = list(b"\n</think>\n\n")


def rules(form: ReasoningFormat = THINK, **fields: Any) -> ReasoningRules:
    values: dict[str, Any] = {
        "is_open": True,
        "end": list(form.end("").encode()),
        "later_end": list(form.later_end("").encode()),
        "allows_several": form.thoughts_recur,
    }
    return ReasoningRules(form.opening_pattern, form.closing_pattern, **values | fields)


def written(thought: ReasoningTracker, tokens: list[int], text: bytes, *, allowed: bool = True) -> bytes:
    """Add the bytes of a text to the tokens of an answer, and before each those of the thought; returns what is new."""
    first = len(tokens)
    for byte in text:
        while (token := thought.next_token(tokens, lambda _: allowed)) is not None:
            tokens.append(token)
        tokens.append(byte)
    return bytes(tokens[first:])


def answer(text: str, budget: int | None, form: ReasoningFormat = THINK, **fields: Any) -> str:
    prompt = list(b"Hi</think>")
    thought = ReasoningTracker(rules(form, budget=budget, **fields), lambda token: bytes([token]), len(prompt))
    return written(thought, prompt, text.encode()).decode()


@pytest.mark.parametrize(
    ("text", "budget", "found"),
    [
        ("abcdefgh", 3, "abc\n</think>\n\ndefgh"),
        ("abcdefgh", 0, "\n</think>\n\nabcdefgh"),
        ("ab</think>cdefgh", 12, "ab</think>cdefgh"),
        ("ab</think>cdefgh", None, "ab</think>cdefgh"),
        # A sentence counts from the last tenth on, and a number's dot is none.
        ("a. bcdefghijklm. nopqrst", 20, "a. bcdefghijklm. nop\n</think>\n\nqrst"),
        ("a. bcdefghijklmnop. rst", 20, "a. bcdefghijklmnop.\n</think>\n\n rst"),
        ("abcdefghijklmnopq3.14", 20, "abcdefghijklmnopq3.1\n</think>\n\n4"),
        ('abcdefghijklmnopq." rst', 20, 'abcdefghijklmnopq.\n</think>\n\n" rst'),
        # A character is not cut.
        ("abéd", 3, "abé\n</think>\n\nd"),
        ("ab😀d", 3, "ab😀\n</think>\n\nd"),
    ],
)
def test_a_thought_ends_at_its_budget(text: str, budget: int | None, found: str) -> None:
    assert answer(text, budget) == found


def test_an_answer_may_open_its_only_thought_at_its_beginning() -> None:
    assert answer(" \n<think>abcd", 2, is_open=False) == " \n<think>ab\n</think>\n\ncd"
    assert answer("abc<think>abcd", 2, is_open=False) == "abc<think>abcd"
    text = "a" * 100 + "<think>abcd"
    assert answer(text, 2, is_open=False) == text
    assert answer("[THINK]abcd", 2, MISTRAL_THINK, is_open=False) == "[THINK]ab\n[/THINK]\n\ncd"


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>analysis<|message|>",
        "<|start|>assistant to=browser.open<|channel|>analysis <|constrain|>json<|message|>",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>a<|channel|>analysis<|message|>",
    ],
)
def test_messages_on_the_channel_of_analysis_are_thoughts(header: str) -> None:
    assert answer(f"{header}abcd", 2, HARMONY, is_open=False) == f"{header}ab<|end|><|start|>assistantcd"


def test_a_later_message_without_an_end_before_it_is_found() -> None:
    text = "<|channel|>analysis<|message|>ab<|channel|>final<|message|>cd<|end|><|channel|>analysis<|message|>efgh"
    budget = 2 + len("<|channel|>") + 2
    assert answer(text, budget, HARMONY, is_open=False) == text.replace("gh", "<|end|><|start|>assistantgh")


def test_a_thought_goes_on_where_the_grammar_does_not_let_it_end() -> None:
    thought = ReasoningTracker(rules(budget=2), lambda token: bytes([token]))
    tokens: list[int] = []
    assert written(thought, tokens, b"abcd", allowed=False) == b"abcd"
    assert written(thought, tokens, b"ef") == b"\n</think>\n\nef"


def test_a_thought_can_be_ended_from_outside() -> None:
    thought = ReasoningTracker(rules(budget=None), lambda token: bytes([token]))
    tokens: list[int] = []
    assert written(thought, tokens, b"abc") == b"abc"
    thought.end()
    assert written(thought, tokens, b"def") == b"\n</think>\n\ndef"
    thought.end()
    assert written(thought, tokens, b"ghi") == b"ghi"


@given(text=st.text(alphabet="a.é\n<>/think ", max_size=60), budget=st.integers(0, 40), cuts=st.integers(1, 7))
def test_tokens_of_any_text_have_the_same_end(text: str, budget: int, cuts: int) -> None:
    """Markers are found however tokens cut them: what differs is only how many tokens a thought has had by then."""
    data = text.encode()
    pieces = [data[start : start + cuts] for start in range(0, len(data), cuts)]
    thought = ReasoningTracker(rules(budget=budget), pieces.__getitem__)
    own = 0
    for token in range(len(pieces)):
        if thought.next_token(range(token), lambda _: True) is not None:
            break
        own += 1
    before = b"".join(pieces[:own])
    assert own <= budget + 3 or b"</think>" in before
    if own < len(pieces) and b"</think>" not in before:
        before.decode()  # no character is cut


SPECIAL = ["<end>", "<think>", "</think>", *harmony.MARKERS]
IDS = {text: 256 + place for place, text in enumerate(SPECIAL)}
EOS = [IDS["<end>"]]
NUMBER = regex("[0-9]{3}!")


def encoded(text: str) -> list[int]:
    """The tokens of a text: its markers, and bytes."""
    pieces = re.split(f"({'|'.join(map(re.escape, SPECIAL))})", text)
    return [token for piece in pieces for token in ([IDS[piece]] if piece in IDS else piece.encode())]


@pytest.mark.parametrize(
    ("form", "answer_grammar", "found"),
    [
        (THINK, NUMBER, "aaaaaaaa\n</think>\n\n777!"),
        (
            HARMONY,
            after_text(harmony.FINAL, NUMBER, IDS),
            "aaaaaaaa<|end|><|start|>assistant<|channel|>analysis<|message|><|end|><|start|>assistant"
            "<|channel|>final<|message|>777!",
        ),
    ],
    ids=["think", "harmony"],
)
def test_grammars_hold_where_markers_are_tokens(form: ReasoningFormat, answer_grammar: str, found: str) -> None:
    """The model prefers to think on, then a new channel, and then digits."""
    guidance = Guidance(
        byte_tokenizer([text.encode() for text in SPECIAL], EOS, 256 + len(SPECIAL)), 256 + len(SPECIAL)
    )
    grammar = after_reasoning(answer_grammar, form, ReasoningState.INSIDE, IDS)
    ends = {"end": encoded(form.end("")), "later_end": encoded(form.later_end(""))}
    request = GenerationRequest("r", [1, 2], grammar=grammar, max_tokens=80, max_length=200)
    sequence = Sequence(0, (0, 0), request, lambda: 0.0, guide(guidance, grammar))
    sequence.reasoning = ReasoningTracker(rules(form, budget=8, **ends), guidance.token_bytes, 2)
    logits = np.zeros((1, 256 + len(SPECIAL)), np.float32)
    logits[0, [ord("a"), IDS[harmony.CHANNEL], ord("7")]] = 9, 8, 7
    while choose_next_token(sequence, Scores(logits), EOS).reason is None:
        pass
    assert b"".join(map(guidance.token_bytes, sequence.tokens[2:])).decode() == found
