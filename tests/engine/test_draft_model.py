"""Answers with drafts of a draft model equal those without: on the demo model, which drafts for itself.

Drafts are judged as if passes of any length took the same time, and those of the draft model none, so the results do
not depend on the machine.
"""

from collections import abc
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from llguidance import LLMatcher

from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.draft_model import DraftModel
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.sequence_limits import BatchLimits
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.drafts import NO_DRAFT, TextDrafts
from genai_server.engine.scheduling.scheduler_output import KvMemory, ScheduledChunk
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import RunnerFailed
from genai_server.messages.admin import ResetPrefixCache, SetRuntimeOption
from genai_server.messages.engine_protocol import Cancel
from genai_server.messages.generation_request import GenerationRequest, Sampling
from tests.demo_device import MAX_LENGTH, DemoDevice, prompt
from tests.engine.model_runners import batched_runner
from tests.engine.scheduling.scheduled import FreePasses
from tests.running_server import DEMO

pytestmark = pytest.mark.usefixtures("passes_of_any_length_take_the_same_time")
ASKED = "Count from 1 to 12."
OTHER = "What is the capital of France?"
LIST = LLMatcher.grammar_from_regex("((Rome|Oslo) is a city\\. ){12}")


class Wrong(BatchedRunner):
    """Gives each fifth row of logits the last token as the best one."""

    num_scores = 0

    def forward(self, chunks: Any) -> list[Scores]:
        return [self._worse(scores) for scores in super().forward(chunks)]

    def _worse(self, scores: Scores) -> Scores:
        self.num_scores += 1
        if self.num_scores % 5 == 0:
            scores.logits[-1, -1] = np.inf
        return scores


@pytest.fixture(scope="module")
def drafting_runner(session: Any) -> BatchedRunner:
    return batched_runner(session=session, num_slots=6, max_length=MAX_LENGTH)


@pytest.fixture
def model(drafting_runner: BatchedRunner) -> DraftModel:
    drafting_runner.forget()
    model = DraftModel(drafting_runner, drafting_runner.model.vocab_size)
    model.times = FreePasses()
    return model


@pytest.fixture
def passes(model: DraftModel, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The numbers of tokens of the rows of each of the draft model's passes."""
    found: list[list[int]] = []
    forward = model.runner.forward

    def noted(chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        found.append([read.num_tokens for read in chunks])
        return forward(chunks)

    monkeypatch.setattr(model.runner, "forward", noted)
    return found


@pytest.fixture
def drafting(drafting_with_text: DemoDevice, monkeypatch: pytest.MonkeyPatch) -> DemoDevice:
    """Only the draft model drafts."""
    monkeypatch.setattr(TextDrafts, "propose", lambda *_: NO_DRAFT)
    return drafting_with_text


@pytest.fixture
def drafting_with_text(batched: BatchedRunner, model: DraftModel, guidance: Guidance, tmp_path: Path) -> DemoDevice:
    batched.forget()
    return DemoDevice(LoadedModel(batched, batched, draft_model=model), guidance, tmp_path, speculates=True)


FIELDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampling": Sampling(1.0, seed=3)},
    "from few tokens": {"sampling": Sampling(1.2, top_k=20, top_p=0.95, min_p=0.01, seed=4)},
    "with penalties": {"sampling": Sampling(0.8, seed=5, frequency_penalty=0.3, repetition_penalty=1.1)},
    "with a bias": {"sampling": Sampling(1.0, logit_bias={300: 2.0, 301: -100.0}, seed=6)},
    "with a grammar": {"grammar": LIST, "max_tokens": 150, "sampling": Sampling(1.0, seed=6)},
    "beyond its end": {"ignore_eos": True, "max_tokens": 200},
}


@pytest.mark.parametrize("kind", FIELDS)
def test_an_answer_has_the_same_tokens_with_a_draft_model(
    plain: DemoDevice, drafting: DemoDevice, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # The seed is for the comparison; with a seed there are no drafts.
    monkeypatch.setattr(BatchedRunner, "may_draft", lambda *_: True)
    wanted = plain.answer(1, ASKED, **FIELDS[kind])
    assert drafting.answer(1, ASKED, **FIELDS[kind]) == wanted
    end = drafting.end(1)
    assert end.reason == plain.reason(1)
    assert 0 < end.num_accepted <= end.num_drafted


def test_a_greedy_answer_is_drafted_by_its_own_model(drafting: DemoDevice) -> None:
    tokens = drafting.answer(1, ASKED)
    end = drafting.end(1)
    assert end.num_accepted > len(tokens) / 2
    assert end.num_drafted - end.num_accepted < 15  # the last draft goes beyond the end


def test_an_answer_has_no_drafts_only_while_it_is_profiled(drafting: DemoDevice, tmp_path: Path) -> None:
    wanted = drafting.answer(1, ASKED, ignore_eos=True)
    drafting.submit(2, ASKED, ignore_eos=True)
    found = []
    for call, value, until in ((7, "0", 10), (8, "p", 30), (9, "0", 60)):
        drafting.put(SetRuntimeOption(call, "enable_profiling", value))
        drafting.run_to(2, until) if until < 60 else drafting.run(2)
        found.append(len(drafting.tokens(2)))
    assert drafting.tokens(2) == wanted
    end = drafting.end(2)
    assert end.num_profiled == len(list(tmp_path.glob("cpu/p_*.json"))) == found[1] - found[0]
    assert 0 < end.num_accepted < drafting.end(1).num_accepted


def test_wrong_drafts_change_nothing(
    plain: DemoDevice, drafting: DemoDevice, model: DraftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.runner, "__class__", Wrong)
    for key, text in enumerate((ASKED, OTHER)):
        wanted = plain.answer(key, text)
        assert drafting.answer(key, text) == wanted
        assert 0 < drafting.end(key).num_accepted < drafting.end(key).num_drafted


def test_concurrent_answers_are_drafted_in_the_same_passes(
    plain: DemoDevice, drafting: DemoDevice, passes: list[list[int]]
) -> None:
    texts = [ASKED, "Count from 1 to 11.", "Count from 2 to 12.", "Count from 3 to 14."]
    wanted = [plain.answer(key, text) for key, text in enumerate(texts)]
    for key, text in enumerate(texts):
        drafting.submit(key, text)
    drafting.run(*range(len(texts)))
    assert [drafting.tokens(key) for key in range(len(texts))] == wanted
    assert max(map(len, passes)) == len(texts)
    assert all(drafting.end(key).num_accepted for key in range(len(texts)))


def test_right_prediction_is_used_before_the_draft_model(
    drafting_with_text: DemoDevice, passes: list[list[int]]
) -> None:
    wanted = drafting_with_text.answer(1, ASKED)
    passes.clear()
    assert drafting_with_text.answer(2, ASKED, prediction=wanted) == wanted
    assert drafting_with_text.end(2).num_accepted > len(wanted) / 2
    assert len(passes) < len(wanted) / 2


def test_draft_model_has_a_slot_for_each_running_sequence(drafting: DemoDevice, model: DraftModel) -> None:
    for key in (1, 2, 3):
        drafting.submit(key, ASKED, ignore_eos=True)
    drafting.run_to(3, 10)
    assert model.runner.slots.num_running == 3
    drafting.put(Cancel(1))
    drafting.steps(1)
    assert model.runner.slots.num_running == 2
    drafting.run(2, 3)
    assert model.runner.slots.num_running == 0


def test_preempted_sequence_gives_its_slot_of_the_draft_model_back(drafting: DemoDevice, model: DraftModel) -> None:
    wanted = drafting.answer(9, ASKED)
    drafting.submit(1, ASKED)
    drafting.run_to(1, 4)
    (sequence,) = drafting.scheduler.running
    drafting.scheduler._preempt(sequence)
    assert model.runner.slots.num_running == 0
    drafting.run(1)
    assert drafting.tokens(1) == wanted


def test_draft_model_finds_prompts_that_it_has_read(drafting: DemoDevice, passes: list[list[int]]) -> None:
    drafting.answer(1, ASKED, max_tokens=6)
    first = sum(map(sum, passes))
    passes.clear()
    drafting.answer(2, ASKED, max_tokens=6)
    assert sum(map(sum, passes)) < first - len(prompt(ASKED)) / 2


def test_only_tokens_of_the_answer_stay_cached_until_a_reset(drafting: DemoDevice, model: DraftModel) -> None:
    tokens = [*prompt(ASKED), *drafting.answer(1, ASKED)]
    (slot,) = [slot for slot in model.runner.slots.slots if slot.tokens]
    assert slot.tokens == tokens[: len(slot.tokens)]
    drafting.put(ResetPrefixCache(7))
    drafting.steps(1)
    assert not any(slot.tokens for slot in model.runner.slots.slots)


def test_answer_goes_on_without_a_draft_model_that_fails(
    plain: DemoDevice, drafting: DemoDevice, model: DraftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plain.answer(1, ASKED)
    monkeypatch.setattr(model.runner.session, "run", Mock(side_effect=RunnerFailed("no memory")))
    assert drafting.answer(1, ASKED) == wanted
    assert drafting.end(1).num_drafted == 0
    assert model.runner.slots.num_running == 0


def a_small_model(session: Any, num_slots: int, num_pages: int | None = None) -> DraftModel:
    """A draft model with this number of slots, which share pages of 16 tokens."""
    shared = MAX_LENGTH // 16
    memory = KvMemory(16, num_pages or shared * num_slots, page_bytes=1, min_pages=shared, max_pages=1000)
    limits = BatchLimits(num_slots, MAX_LENGTH, memory)
    runner = BatchedRunner(read_decoder_graph(DEMO), session, check_model_directory(DEMO), limits)
    return DraftModel(runner, runner.model.vocab_size)


def a_decoding(id: int, num_prompt: int, *, reuses_past: bool = True) -> Sequence:
    """A sequence with one token of its answer. Prompts of different ids have nothing in common."""
    request = GenerationRequest(f"{id}", [300 + 50 * id + n % 50 for n in range(num_prompt)], 100, MAX_LENGTH)
    sequence = Sequence(id, (0, id), request, lambda: 0.0, reuses_past=reuses_past)
    sequence.append(5)
    return sequence


def read(model: DraftModel, sequence: Sequence) -> None:
    model.propose([], [(sequence, len(sequence.prompt))])


def test_only_as_many_sequences_are_drafted_as_there_are_slots(session: Any) -> None:
    model = a_small_model(session, 2)
    sequences = [a_decoding(id, 10) for id in range(3)]
    drafts = model.propose([(sequence, 2) for sequence in sequences], [])
    assert list(map(len, drafts)) == [2, 2, 0]
    assert [model.room(sequence) > 0 for sequence in sequences] == [True, True, False]
    model.close(0)
    assert list(map(len, model.propose([(sequence, 2) for sequence in sequences[1:]], []))) == [2, 2]


def test_sequence_without_memory_is_not_begun(session: Any) -> None:
    model = a_small_model(session, 3, 32)
    sequences = [a_decoding(id, 200) for id in range(3)]  # each needs 12 pages
    for sequence in sequences[:2]:
        read(model, sequence)
    assert [model.room(sequence) > 0 for sequence in sequences] == [True, True, False]
    read(model, sequences[2])
    assert model.runner.slots.num_running == 2


def test_sequence_that_grows_beyond_the_memory_is_forgotten(session: Any) -> None:
    model = a_small_model(session, 2, 32)
    first, second = (a_decoding(id, 250) for id in range(2))  # each needs 15 pages
    for sequence in (first, second):
        read(model, sequence)
    first.tokens += [6] * 50
    assert list(map(len, model.propose([(first, 2), (second, 2)], []))) == [0, 2]
    assert (model.room(first), model.runner.slots.num_running) == (0, 1)
    model.close(second.id)
    assert model.room(first) > 0


def test_smaller_memory_is_kept_by_forgetting_the_newest(session: Any, batched: BatchedRunner) -> None:
    model = a_small_model(session, 3, 96)
    loaded = LoadedModel(batched, batched, draft_model=model)
    for id in range(3):
        read(model, a_decoding(id, 200))
    loaded.resize(0)
    loaded.fit_memory()
    assert model.runner.slots.num_bytes <= 32
    assert [model.runner.slots.has(id) for id in range(3)] == [True, True, False]


def test_unread_tokens_include_a_prefix_that_is_not_reused(session: Any) -> None:
    model = a_small_model(session, 2)
    read(model, a_decoding(0, 100))
    model.close(0)
    assert model.num_unread(a_decoding(0, 100)) < 10
    model.close(0)
    assert model.num_unread(a_decoding(0, 100, reuses_past=False)) == 101


def test_sequence_that_could_not_be_opened_frees_its_slot(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_small_model(session, 1)
    with monkeypatch.context() as patch:
        patch.setattr(model.runner, "_give_inputs", Mock(side_effect=RunnerFailed("no memory")))
        with pytest.raises(RunnerFailed):
            model.propose([(a_decoding(0, 10), 2)], [])
    model.close(0)
    assert model.propose([(a_decoding(1, 10), 2)], []) != [[]]


@pytest.mark.usefixtures("drafting")
def test_sequences_too_long_for_the_draft_model_have_no_drafts(
    batched: BatchedRunner, guidance: Guidance, session: Any, tmp_path: Path
) -> None:
    length = len(prompt(ASKED)) + 10
    short = batched_runner(session=session, num_slots=6, max_length=length)
    short.model = short.model.__class__(length, short.model.vocab_size, short.model.eos_token_ids, short.model.defaults)
    model = DraftModel(short, short.model.vocab_size)
    model.times = FreePasses()
    device = DemoDevice(LoadedModel(batched, batched, draft_model=model), guidance, tmp_path, speculates=True)
    tokens = device.answer(1, ASKED, ignore_eos=True, max_tokens=60)
    assert len(tokens) == 60
    assert 0 < device.end(1).num_drafted <= 10 + 15
