"""Grammars: the allowed next tokens, complete answers, and the errors of invalid grammars."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, cycle, repeat
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import numpy as np
import pytest
from llguidance import LLMatcher

from genai_server.engine.model.files import check_model_directory
from genai_server.engine.sampling import grammar as module
from genai_server.engine.sampling.grammar import (
    MAX_SAVED_SECONDS,
    SECONDS_PER_TOKEN,
    STEP_SECONDS,
    Compiled,
    Guidance,
    Guide,
    bytes_guidance,
    model_guidance,
)
from genai_server.errors import GrammarFailed, InvalidField
from genai_server.messages.generation_request import ModelInfo, Sampling
from tests.engine.sampling.grammars import AMBIGUOUS, compiled, guide
from tests.running_server import DEMO, run_python

EOS = 256
BYTES = ModelInfo(context_length=100, vocab_size=258, eos_token_ids=[EOS, EOS + 1], defaults=Sampling())


@pytest.fixture
def guidance() -> Guidance:
    return bytes_guidance(BYTES)


def allowed(guide: Guide) -> str:
    """The bytes that may come next, with $ for the end."""
    tokens = np.flatnonzero(guide.allowed()).tolist()
    return "".join("$" if token >= EOS else chr(token) for token in tokens)


def follow(guide: Guide, text: str) -> Guide:
    for token in text.encode():
        assert guide.allowed()[token], f"{chr(token)!r} of {text!r} is not allowed"
        guide.commit(token)
    return guide


def kept(guidance: Guidance, texts: Iterable[str], tenant: str = "") -> list[str]:
    """For which of these texts a tenant has a compiled grammar. All count as used."""
    return [text for text in texts if guidance.guide(f'start: "{text}"', tenant=tenant) is not None]


def keep(guidance: Guidance, texts: Iterable[str], tenant: str = "") -> None:
    """Compile a grammar of each text."""
    for text in texts:
        guide(guidance, f'start: "{text}"', tenant)


# progress through a grammar


def test_two_answers_of_one_grammar_go_their_own_ways(guidance: Guidance) -> None:
    first = guide(guidance, 'start: "a" "b" | "c" "d"')
    second = guidance.guide('start: "a" "b" | "c" "d"')
    assert second is not None
    assert allowed(follow(first, "a")) == "b"
    assert allowed(second) == "ac"
    assert allowed(follow(second, "c")) == "d"


@pytest.mark.parametrize(
    ("grammar", "text", "next_tokens", "may_end", "is_complete"),
    [
        (LLMatcher.grammar_from_regex("ab?[0-2]"), "", "a", False, False),
        (LLMatcher.grammar_from_regex("ab?[0-2]"), "a", "012b", False, False),
        (LLMatcher.grammar_from_regex("ab?[0-2]"), "a2", "$$", True, True),
        ("start: /[0-1]+/", "10", "01$$", True, False),
        ('start: ""', "", "$$", True, False),
    ],
)
def test_a_grammar_is_followed_byte_by_byte_to_where_it_may_end(
    guidance: Guidance, grammar: str, text: str, next_tokens: str, *, may_end: bool, is_complete: bool
) -> None:
    way = follow(guide(guidance, grammar), text)
    assert (allowed(way), way.may_end, way.is_complete) == (next_tokens, may_end, is_complete)


def test_a_token_that_does_not_fit_fails_the_answer(guidance: Guidance) -> None:
    with pytest.raises(GrammarFailed, match="does.*not|doesn't"):
        guide(guidance, "start: /[0-9]+/").commit(ord("x"))


def test_grammar_that_becomes_too_ambiguous_fails_the_answer(guidance: Guidance) -> None:
    way = guide(guidance, AMBIGUOUS)
    with pytest.raises(GrammarFailed, match="cannot be followed any further: .*items"):
        follow(way, "x" * 500)
    assert (way.may_end, way.is_complete) == (False, False)  # the library reports that it has stopped


# time limits


def timed_guide(seconds: Iterator[float]) -> Guide:
    """A guide whose successive operations take this processor time in seconds."""
    times = (time for spent in seconds for time in (0.0, spent))
    return guide(bytes_guidance(BYTES, lambda: next(times)), "start: /x*/")


def test_an_answer_fails_when_its_grammar_takes_too_long() -> None:
    assert (SECONDS_PER_TOKEN, MAX_SAVED_SECONDS) == (0.01, 0.5)
    way = timed_guide(repeat(0.13))  # 0.12 s more than the limit per token
    for _ in range(4):
        way.commit(ord("x"))
    with pytest.raises(GrammarFailed, match=r"takes too long to follow: 130 ms .*10 ms for each token, and 0.5 s in"):
        way.commit(ord("x"))


def test_a_slow_token_among_fast_ones_is_allowed() -> None:
    way = timed_guide(cycle([MAX_SAVED_SECONDS, *[SECONDS_PER_TOKEN / 4] * 400]))
    follow(way, "x" * 1000)


def test_a_mask_counts_before_its_token_is_chosen() -> None:
    way = timed_guide(repeat(0.3))
    way.allowed()
    with pytest.raises(GrammarFailed, match="600 ms"):
        way.allowed()


def test_a_slow_grammar_is_followed_as_a_fast_one_is() -> None:
    fast, slow = timed_guide(repeat(0.0)), timed_guide(repeat(STEP_SECONDS + 0.001))
    for way in (fast, slow):
        way.commit(ord("x"))
    assert (fast.is_slow, slow.is_slow) == (False, True)
    for token in (ord("x"), ord("y")):
        assert slow.allows(token) == fast.allows(token)
    for way in (fast, slow):
        way.commit(ord("x"))
        assert allowed(way) == "x$$"
    with pytest.raises(GrammarFailed):
        slow.commit(ord("y"))


def test_a_grammar_stays_slow_for_some_fast_tokens() -> None:
    way = timed_guide(chain([4 * STEP_SECONDS], repeat(0.0)))
    slow = 0
    way.commit(ord("x"))
    while way.is_slow:
        slow += 1
        way.commit(ord("x"))
    assert 2 < slow < 20


# invalid grammars


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: (", "Expected token"),
        ("", "Empty grammar"),
        ('start: %json {"minimum": "x"}', "minimum"),
        ("start: <|nothing|>", "unknown special token"),
    ],
)
def test_a_wrong_grammar_is_refused_with_the_librarys_reason(guidance: Guidance, grammar: str, reason: str) -> None:
    for _ in range(2):
        with pytest.raises(InvalidField, match=reason) as raised:
            guidance.keep(grammar, compiled(guidance, grammar))
            guidance.guide(grammar)
        assert raised.value.param == "grammar"
        assert "non-verbose" not in raised.value.message


# caching


def test_a_compiled_grammar_need_not_be_compiled_again(guidance: Guidance) -> None:
    assert kept(guidance, "a") == []
    keep(guidance, "a")
    assert kept(guidance, "ab") == ["a"]


def test_least_recently_used_grammar_is_evicted(guidance: Guidance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED_GRAMMARS", 2)
    keep(guidance, "ab")
    assert kept(guidance, "a") == ["a"]
    keep(guidance, "c")
    assert kept(guidance, "ab") == ["a"]


def test_long_grammars_are_kept_as_long_as_they_are_not_too_many(
    guidance: Guidance, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a", "c", "b" * 100]
    monkeypatch.setattr(module, "_MAX_CACHED_CHARACTERS", 60)
    keep(guidance, texts)
    assert kept(guidance, texts) == texts
    keep(guidance, "d")
    assert kept(guidance, texts) == texts[:2]


@pytest.fixture
def gate(guidance: Guidance, monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Compilations of a grammar for "held" wait until this is set, at most until the test ends."""
    gate, compile_one = Event(), guidance._compile

    def compile_later(grammar: str) -> Compiled:
        assert grammar != HELD or gate.wait(90)
        return compile_one(grammar)

    monkeypatch.setattr(guidance, "_compile", compile_later)
    yield gate
    gate.set()


HELD = 'start: "held"'


@pytest.mark.parametrize(("tenants", "num_compiled"), [(["", "", ""], 1), (["alice", "bob"], 2)])
def test_a_grammar_that_several_wait_for_is_compiled_once_for_each_tenant(
    guidance: Guidance, gate: Event, tenants: list[str], num_compiled: int
) -> None:
    done: SimpleQueue[Compiled] = SimpleQueue()
    for tenant in tenants:
        guidance.compile(HELD, done.put, tenant=tenant)
    gate.set()
    assert len({id(done.get(timeout=90)) for _ in tenants}) == num_compiled


def test_tenants_share_no_compiled_grammars(guidance: Guidance) -> None:
    keep(guidance, "a", "alice")
    assert kept(guidance, "a", "bob") == []


def test_a_tenant_does_not_wait_for_a_grammar_of_another_one(guidance: Guidance, gate: Event) -> None:
    done: SimpleQueue[Compiled] = SimpleQueue()
    guidance.compile(HELD, done.put, tenant="alice")
    keep(guidance, ["small"], "bob")
    assert done.empty()
    gate.set()
    done.get(timeout=90)


def test_new_grammars_evict_those_of_the_tenant_that_has_most(
    guidance: Guidance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED_GRAMMARS", 4)
    keep(guidance, "x", "bob")
    keep(guidance, "0123456789", "alice")
    assert kept(guidance, "x", "bob") == ["x"]
    keep(guidance, "x", "carol")
    assert kept(guidance, "x", "bob") == ["x"]
    assert kept(guidance, "0123456789", "alice") == ["8", "9"]


def test_of_equal_tenants_the_one_with_the_newest_grammar_loses_another(
    guidance: Guidance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED_GRAMMARS", 3)
    keep(guidance, "12", "bob")
    keep(guidance, "34", "alice")
    assert kept(guidance, "3", "alice") == []
    assert kept(guidance, "1", "bob") == ["1"]


def test_long_grammars_evict_those_of_the_tenant_with_the_most_characters(
    guidance: Guidance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED_CHARACTERS", 200)
    longest_of_bob, *of_alice = "b" * 100, *(letter * 50 for letter in "acde")
    keep(guidance, [longest_of_bob], "bob")
    keep(guidance, of_alice, "alice")
    assert kept(guidance, [longest_of_bob], "bob") == [longest_of_bob]
    assert kept(guidance, of_alice, "alice") == of_alice[2:]
    assert sum(len(grammar) for _, grammar in guidance._kept) - len(f'start: "{of_alice[3]}"') <= 200


def test_grammar_that_followed_many_tokens_is_recompiled(guidance: Guidance, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = "start: /[a-z]+/"
    monkeypatch.setattr(module, "_MAX_FOLLOWED", 4)
    follow(guide(guidance, grammar), "ab")
    way = guidance.guide(grammar)
    assert way is not None
    follow(way, "ab")
    assert follow(guide(guidance, grammar), "abc").may_end
    assert follow(way, "cdefgh").may_end


def test_an_answer_that_fails_leaves_nothing_for_the_next_one(guidance: Guidance) -> None:
    with pytest.raises(GrammarFailed):
        guide(guidance, "start: /[0-2]+/").commit(ord("x"))
    assert allowed(guide(guidance, "start: /[0-2]+/")) == "012"


def test_expensive_expression_fails_before_a_token(guidance: Guidance) -> None:
    way = guide(guidance, LLMatcher.grammar_from_regex("(a{1000}){1000}"))
    with pytest.raises(GrammarFailed, match="too many expressions"):
        follow(way, "aaa")


# tokenizers


def test_a_models_own_tokens_are_guided() -> None:
    model = check_model_directory(DEMO)
    way = guide(model_guidance(DEMO, model), 'start: "Paris" | "Rome"')
    mask = way.allowed()
    assert mask.shape == (model.vocab_size,)
    tokens = [token["content"] for token in json.loads((DEMO / "tokenizer.json").read_text())["added_tokens"]]
    vocabulary = json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"]
    expected = {text for text in vocabulary if text and ("Paris".startswith(text) or "Rome".startswith(text))}
    assert {text for text, token in vocabulary.items() if mask[token]} == expected - set(tokens)


def test_model_with_a_smaller_vocabulary_is_guided_within_it() -> None:
    small = ModelInfo(context_length=100, vocab_size=300, eos_token_ids=[2], defaults=Sampling())
    assert guide(model_guidance(DEMO, small), "start: /[a-z]+/").allowed().shape == (300,)


def test_unusable_tokenizer_is_reported_when_a_grammar_is_used(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    guidance = model_guidance(tmp_path, BYTES)
    with pytest.raises(InvalidField, match="grammar cannot be followed by this model: .*tokenizer") as raised:
        guidance.guide('start: "a"')
    assert raised.value.param == "grammar"


def test_compiling_thread_has_stack_for_every_checked_grammar() -> None:
    code = (
        "import threading\n"
        "from queue import SimpleQueue\n"
        "from genai_server.engine.sampling.grammar import bytes_guidance\n"
        "from genai_server.messages.generation_request import ModelInfo, Sampling\n"
        "threading.stack_size(256 * 1024)\n"
        "chain = 'start: a0\\n' + '\\n'.join(f'a{n}: a{n + 1}' for n in range(400)) + '\\na400: \"x\"'\n"
        "done = SimpleQueue()\n"
        "bytes_guidance(ModelInfo(100, 258, [256, 257], Sampling())).compile(chain, done.put)\n"
        "print(type(done.get(timeout=60)).__name__, flush=True)\n"
    )
    assert run_python("-c", code) == "LLMatcher\n"
