"""Thoughts with a budget in the loop, on the demo model, whose markers are several tokens each."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.errors import InvalidField
from genai_server.messages.admin import EndReasoning, ReasoningEnded
from genai_server.messages.engine_protocol import Refused
from genai_server.messages.generation_request import FinishReason, ReasoningRules, Sampling
from genai_server.text.answers.reasoning import THINK, ReasoningState
from genai_server.text.codec import load_text_codec
from genai_server.text.grammars.grammar import after_reasoning, regex
from tests.demo_device import MAX_LENGTH, DemoDevice
from tests.running_server import DEMO

pytestmark = pytest.mark.usefixtures("passes_of_any_length_take_the_same_time")
QUESTION = "Count from 1 to 12."
BUDGET = 20
END = load_text_codec(DEMO, "cpu").tokenizer.encode(THINK.end(""))
RULES = ReasoningRules(
    THINK.opening_pattern,
    THINK.closing_pattern,
    is_open=True,
    allows_several=False,
    end=END,
    later_end=END,
    budget=BUDGET,
)
SIXTY: dict[str, Any] = {"ignore_eos": True, "max_tokens": 60}
PENALIZED = Sampling(0.8, seed=5, frequency_penalty=0.3, repetition_penalty=1.1)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": SIXTY | {"max_tokens": 100},
    "sampled": SIXTY | {"sampling": Sampling(1.0, seed=3)},
    "with penalties": SIXTY | {"sampling": PENALIZED},
    "with log probabilities": SIXTY | {"top_logprobs": 2},
}


@pytest.fixture
def drafting(loaded: LoadedModel, guidance: Guidance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DemoDevice:
    monkeypatch.setattr(BatchedRunner, "may_draft", lambda *_: True)
    return DemoDevice(loaded, guidance, tmp_path, speculates=True)


def ended_at(tokens: list[int]) -> int:
    """Where the tokens that close a thought begin."""
    return next(at for at in range(len(tokens)) if tokens[at : at + len(END)] == END)


@pytest.mark.parametrize("kind", ["sampled", "with log probabilities"])
def test_a_budget_that_is_not_reached_changes_nothing(plain: DemoDevice, kind: str) -> None:
    for key, thoughts in enumerate((None, structs.replace(RULES, budget=MAX_LENGTH * 10))):
        plain.answer(key, QUESTION, **KINDS[kind], thoughts=thoughts)
    assert plain.tokens(0) == plain.tokens(1)
    assert plain.logprobs(0) == plain.logprobs(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thought_ends_at_its_budget_also_with_drafts(plain: DemoDevice, drafting: DemoDevice, kind: str) -> None:
    fields = KINDS[kind]
    free = plain.answer(0, QUESTION, **fields)
    found = plain.answer(1, QUESTION, **fields, thoughts=RULES)
    at = ended_at(found)
    assert BUDGET - BUDGET // 10 <= at <= BUDGET
    assert found[:at] == free[:at]
    assert found[at + len(END) :] != free[at + len(END) :]  # the model has read the end
    assert drafting.answer(1, QUESTION, **fields, thoughts=RULES, prediction=free) == found
    assert drafting.end(1).num_accepted > 0


def test_tokens_that_close_a_thought_have_log_probabilities(plain: DemoDevice) -> None:
    tokens = plain.answer(1, QUESTION, **KINDS["with log probabilities"], thoughts=RULES)
    at = ended_at(tokens)
    scored = plain.logprobs(1)
    assert [one.token for one in scored] == tokens
    for one in scored[at : at + len(END)]:
        assert one.logprob <= one.top[0][1]
        assert one.token in dict(one.top) or one.logprob <= one.top[-1][1]


@pytest.mark.parametrize("speculates", [False, True])
def test_the_grammar_of_the_answer_holds_after_the_thought(
    plain: DemoDevice, drafting: DemoDevice, *, speculates: bool
) -> None:
    chosen = drafting if speculates else plain
    grammar = after_reasoning(regex("(Rome|Oslo), [0-9]{3}!"), THINK, ReasoningState.INSIDE, {})
    chosen.answer(1, QUESTION, grammar=grammar, thoughts=RULES, max_tokens=100, sampling=Sampling(1.0, seed=2))
    thought, _, text = chosen.text(1).partition("\n</think>\n\n")
    assert thought
    assert re.fullmatch("(Rome|Oslo), [0-9]{3}!", text)
    assert chosen.reason(1) is FinishReason.STOP


def test_answers_of_one_request_have_budgets_of_their_own(plain: DemoDevice) -> None:
    for key in range(4):
        sampling = Sampling(4.0, seed=key)
        plain.submit(key, QUESTION, ignore_eos=True, sampling=sampling, thoughts=RULES)
    plain.run(*range(4))
    answers = [plain.tokens(key) for key in range(4)]
    assert len({tuple(tokens[:BUDGET]) for tokens in answers}) == 4
    assert all(BUDGET - BUDGET // 10 <= ended_at(tokens) <= BUDGET for tokens in answers)


def test_a_preempted_answer_keeps_its_budget(loaded: LoadedModel, plain: DemoDevice) -> None:
    loaded.forget()  # slots of other tests, whose sequences have the same numbers
    fields = {"ignore_eos": True, "max_tokens": 60, "thoughts": RULES}
    wanted = plain.answer(1, QUESTION, **fields)
    plain.submit(2, QUESTION, **fields)
    plain.run_to(2, 10)
    (sequence,) = plain.scheduler.running
    plain.scheduler._preempt(sequence)
    plain.run(2)
    assert sequence.num_preemptions == 1
    assert plain.tokens(2) == wanted


def test_a_budget_is_refused_where_tokens_have_no_known_text(loaded: LoadedModel, tmp_path: Path) -> None:
    plain = DemoDevice(loaded, Guidance(None, 100, "none"), tmp_path)
    plain.submit(1, QUESTION, thoughts=RULES)
    plain.submit(2, QUESTION, thoughts=structs.replace(RULES, budget=None), max_tokens=1)
    plain.run(1, 2)
    (refused,) = plain.messages(Refused)
    error = refused.error.to_error()
    assert isinstance(error, InvalidField)
    assert (refused.key, error.param) == (1, "thinking_token_budget")


def test_an_operators_call_ends_the_thoughts_of_all_answers_of_a_request(plain: DemoDevice) -> None:
    rules = structs.replace(RULES, budget=None)
    for key, tenant in enumerate(("a", "a", "b")):
        fields = {"request_id": "twice", "unique_id": f"u-{tenant}", "tenant": tenant}
        plain.submit(key, QUESTION, ignore_eos=True, thoughts=rules, **fields)
    plain.run_to(2, 5)
    ended = plain.ask(EndReasoning(7, "twice"), ReasoningEnded)
    assert ({state.unique_id for state in ended.requests}, ended.num_ended) == ({"u-a", "u-b"}, 0)
    ended = plain.ask(EndReasoning(8, "twice", tenant="a"), ReasoningEnded)
    assert ([state.unique_id for state in ended.requests], ended.num_ended) == (["u-a", "u-a"], 2)
    plain.run(0, 1, 2)
    assert all(5 <= ended_at(plain.tokens(key)) <= 12 for key in (0, 1))
    with pytest.raises(StopIteration):
        ended_at(plain.tokens(2))
