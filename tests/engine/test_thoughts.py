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
from tests.engine.model_runners import batched_runner
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
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"ignore_eos": True, "max_tokens": 100},
    "sampled": {"ignore_eos": True, "max_tokens": 60, "sampling": Sampling(1.0, seed=3)},
    "with penalties": {
        "ignore_eos": True,
        "max_tokens": 60,
        "sampling": Sampling(0.8, seed=5, frequency_penalty=0.3, repetition_penalty=1.1),
    },
    "with log probabilities": {"ignore_eos": True, "max_tokens": 60, "top_logprobs": 2},
}


@pytest.fixture(scope="module")
def loaded(session: Any) -> LoadedModel:
    runner = batched_runner(session=session, num_slots=6, max_length=MAX_LENGTH)
    return LoadedModel(runner, runner)


@pytest.fixture
def device(loaded: LoadedModel, guidance: Guidance, tmp_path: Path) -> DemoDevice:
    return DemoDevice(loaded, guidance, tmp_path)


@pytest.fixture
def drafting(loaded: LoadedModel, guidance: Guidance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DemoDevice:
    monkeypatch.setattr(BatchedRunner, "may_draft", lambda *_: True)
    return DemoDevice(loaded, guidance, tmp_path, speculates=True)


def ended_at(tokens: list[int]) -> int:
    """Where the tokens that close a thought begin."""
    return next(at for at in range(len(tokens)) if tokens[at : at + len(END)] == END)


@pytest.mark.parametrize("kind", ["sampled", "with log probabilities"])
def test_a_budget_that_is_not_reached_changes_nothing(device: DemoDevice, kind: str) -> None:
    fields = KINDS[kind]
    for key, thoughts in enumerate((None, structs.replace(RULES, budget=MAX_LENGTH * 10))):
        device.answer(key, QUESTION, **fields, thoughts=thoughts)
    assert device.tokens(0) == device.tokens(1)
    assert device.logprobs(0) == device.logprobs(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thought_ends_at_its_budget_also_with_drafts(device: DemoDevice, drafting: DemoDevice, kind: str) -> None:
    fields = KINDS[kind]
    free = device.answer(0, QUESTION, **fields)
    found = device.answer(1, QUESTION, **fields, thoughts=RULES)
    at = ended_at(found)
    assert BUDGET - BUDGET // 10 <= at <= BUDGET
    assert found[:at] == free[:at]
    assert found[at + len(END) :] != free[at + len(END) :]  # the model has read the end
    assert drafting.answer(1, QUESTION, **fields, thoughts=RULES, prediction=free) == found
    assert drafting.end(1).num_accepted > 0


def test_tokens_that_close_a_thought_have_log_probabilities(device: DemoDevice) -> None:
    tokens = device.answer(1, QUESTION, **KINDS["with log probabilities"], thoughts=RULES)
    at = ended_at(tokens)
    scored = device.logprobs(1)
    assert [one.token for one in scored] == tokens
    for one in scored[at : at + len(END)]:
        assert one.logprob <= one.top[0][1]
        assert one.token in dict(one.top) or one.logprob <= one.top[-1][1]


@pytest.mark.parametrize("speculates", [False, True])
def test_the_grammar_of_the_answer_holds_after_the_thought(
    device: DemoDevice, drafting: DemoDevice, *, speculates: bool
) -> None:
    chosen = drafting if speculates else device
    grammar = after_reasoning(regex("(Rome|Oslo), [0-9]{3}!"), THINK, ReasoningState.INSIDE, {})
    chosen.answer(1, QUESTION, grammar=grammar, thoughts=RULES, max_tokens=100, sampling=Sampling(1.0, seed=2))
    thought, _, text = chosen.text(1).partition("\n</think>\n\n")
    assert thought
    assert re.fullmatch("(Rome|Oslo), [0-9]{3}!", text)
    assert chosen.reason(1) is FinishReason.STOP


def test_answers_of_one_request_have_budgets_of_their_own(device: DemoDevice) -> None:
    for key in range(4):
        sampling = Sampling(4.0, seed=key)
        device.submit(key, QUESTION, ignore_eos=True, sampling=sampling, thoughts=RULES)
    device.run(*range(4))
    answers = [device.tokens(key) for key in range(4)]
    assert len({tuple(tokens[:BUDGET]) for tokens in answers}) == 4
    assert all(BUDGET - BUDGET // 10 <= ended_at(tokens) <= BUDGET for tokens in answers)


def test_a_preempted_answer_keeps_its_budget(loaded: LoadedModel, device: DemoDevice) -> None:
    loaded.forget()  # slots of other tests, whose sequences have the same numbers
    fields = {"ignore_eos": True, "max_tokens": 60, "thoughts": RULES}
    wanted = device.answer(1, QUESTION, **fields)
    device.submit(2, QUESTION, **fields)
    device.run_to(2, 10)
    (sequence,) = device.scheduler.running
    device.scheduler._preempt(sequence)
    device.run(2)
    assert sequence.num_preemptions == 1
    assert device.tokens(2) == wanted


def test_a_budget_is_refused_where_tokens_have_no_known_text(loaded: LoadedModel, tmp_path: Path) -> None:
    device = DemoDevice(loaded, Guidance(None, 100, "none"), tmp_path)
    device.submit(1, QUESTION, thoughts=RULES)
    device.submit(2, QUESTION, thoughts=structs.replace(RULES, budget=None), max_tokens=1)
    device.run(1, 2)
    (refused,) = device.messages(Refused)
    error = refused.error.to_error()
    assert isinstance(error, InvalidField)
    assert (refused.key, error.param) == (1, "thinking_token_budget")


def test_an_operators_call_ends_the_thoughts_of_all_answers_of_a_request(device: DemoDevice) -> None:
    rules = structs.replace(RULES, budget=None)
    for key, tenant in enumerate(("a", "a", "b")):
        fields = {"request_id": "twice", "unique_id": f"u-{tenant}", "tenant": tenant}
        device.submit(key, QUESTION, ignore_eos=True, thoughts=rules, **fields)
    device.run_to(2, 5)
    ended = device.ask(EndReasoning(7, "twice"), ReasoningEnded)
    assert ({state.unique_id for state in ended.requests}, ended.num_ended) == ({"u-a", "u-b"}, 0)
    ended = device.ask(EndReasoning(8, "twice", tenant="a"), ReasoningEnded)
    assert ([state.unique_id for state in ended.requests], ended.num_ended) == (["u-a", "u-a"], 2)
    device.run(0, 1, 2)
    assert all(5 <= ended_at(device.tokens(key)) <= 12 for key in (0, 1))
    with pytest.raises(StopIteration):
        ended_at(device.tokens(2))
