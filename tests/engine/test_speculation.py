"""Answers with drafts equal those without: on the demo model, in the batch.

Drafts are judged as if passes of any length took the same time, so the results do not depend on the machine.
"""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from llguidance import LLMatcher

from genai_server.engine.api_connections import Connected
from genai_server.engine.runners.batched import BatchedRunner, DecoderSession
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.errors import RunnerFailed
from genai_server.messages.admin import CacheReset, ResetPrefixCache
from genai_server.messages.engine_protocol import Cancel, Figures
from genai_server.messages.generation_request import FinishReason, Sampling
from tests.demo_device import DemoDevice
from tests.stepped_loop import OTHER_API

pytestmark = pytest.mark.usefixtures("passes_of_any_length_take_the_same_time")
COUNT = "Count from 1 to 12."
# Its answers have more forced tokens than chosen ones, and no repetition.
FORCED = LLMatcher.grammar_from_regex(
    "The (capital|largest city) of this country is called (Rome|Oslo), and it is old\\."
)
# Its answer repeats the same end eleven times.
LIST = LLMatcher.grammar_from_regex("((Rome|Oslo) is a city\\. ){12}")


@pytest.fixture
def drafting(loaded: LoadedModel, guidance: Guidance, tmp_path: Path) -> DemoDevice:
    return DemoDevice(loaded, guidance, tmp_path, speculates=True)


@pytest.fixture
def remembering(loaded: LoadedModel, guidance: Guidance, tmp_path: Path) -> DemoDevice:
    """A device that also drafts from earlier answers."""
    return DemoDevice(loaded, guidance, tmp_path, speculates=True, answers=AnswerMemory(10**6))


def answer(device: DemoDevice, key: int, **fields: Any) -> list[int]:
    return device.answer(key, COUNT, **fields)


ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beyond its end": {"ignore_eos": True, "max_tokens": 200},
    "sampled": {"sampling": Sampling(1.0, seed=3)},
    "from few tokens": {"sampling": Sampling(1.2, top_k=20, top_p=0.95, min_p=0.01, seed=4)},
    "with penalties": {"sampling": Sampling(0.8, seed=5, frequency_penalty=0.3, repetition_penalty=1.1)},
    "with penalties of the last tokens": {
        "sampling": Sampling(0.8, seed=5, frequency_penalty=0.3, repetition_penalty=1.3, repeat_last_n=6)
    },
    "with a bias": {"sampling": Sampling(logit_bias=dict.fromkeys(range(300, 308), 100.0)), "max_tokens": 100},
    # Its own end is a near tie on some processors.
    "with a least length": {"min_tokens": 50, "max_tokens": 55},
    "with a grammar": {"grammar": LIST, "max_tokens": 150, "sampling": Sampling(1.0, seed=6)},
}


@pytest.mark.parametrize(
    ("kind", "predicted"), [*((kind, True) for kind in ASKED), ("beyond its end", False), ("with a grammar", False)]
)
def test_an_answer_has_the_same_tokens_with_drafts(
    plain: DemoDevice, drafting: DemoDevice, monkeypatch: pytest.MonkeyPatch, kind: str, *, predicted: bool
) -> None:
    # The seed is for the comparison; with a seed there are no drafts.
    monkeypatch.setattr(BatchedRunner, "may_draft", lambda *_: True)
    fields = ASKED[kind]
    wanted = answer(plain, 1, **fields)
    found = answer(drafting, 1, **fields, prediction=wanted if predicted else [])
    end = drafting.end(1)
    assert found == wanted
    assert end.reason == plain.reason(1)
    assert 0 <= end.num_accepted <= end.num_drafted
    if predicted:
        assert end.num_accepted > len(wanted) / 2
    assert (plain.end(1).num_drafted, plain.end(1).num_accepted) == (0, 0)


@pytest.mark.parametrize("kind", ["greedy", "with penalties", "with a grammar"])
def test_repeated_answer_is_drafted_from_the_earlier_one(
    plain: DemoDevice, remembering: DemoDevice, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(BatchedRunner, "may_draft", lambda *_: True)
    fields = ASKED[kind]
    wanted = answer(plain, 1, **fields)
    for key in (1, 2):
        assert answer(remembering, key, **fields, answer_memory="alice") == wanted
    first, second = remembering.end(1), remembering.end(2)
    assert second.num_accepted > max(first.num_accepted, 0.7 * len(wanted))
    assert second.num_accepted > 0.8 * second.num_drafted


def test_answers_of_one_key_change_nothing_for_another(remembering: DemoDevice) -> None:
    wanted = answer(remembering, 1, answer_memory="bob")
    for key in (2, 3):
        answer(remembering, key, answer_memory="alice")
    assert remembering.end(3).num_accepted > remembering.end(2).num_accepted
    assert answer(remembering, 4, answer_memory="carol") == wanted
    # A first answer has the drafts of a first answer, whatever others have asked.
    drafts = [(end.num_drafted, end.num_accepted) for end in map(remembering.end, (1, 2, 4))]
    assert drafts == drafts[:1] * 3


def test_forgotten_answers_are_not_drafted(remembering: DemoDevice) -> None:
    for key in (1, 2):
        answer(remembering, key, answer_memory="alice")
    assert remembering.ask(ResetPrefixCache(5), CacheReset).call == 5
    answer(remembering, 3, answer_memory="alice")
    accepted = [remembering.end(key).num_accepted for key in (1, 2, 3)]
    assert accepted[0] == accepted[2] < accepted[1]


def test_figures_have_the_bytes_of_kept_answers(remembering: DemoDevice) -> None:
    answer(remembering, 1, answer_memory="alice")
    remembering.put(Connected(), OTHER_API)  # it gets the figures at once
    answer(remembering, 2, answer_memory="alice")
    kept = remembering.scheduler.answers
    assert kept is not None
    assert remembering.messages(Figures)[-1].answer_bytes == kept.num_bytes > 0


def test_the_forced_tokens_of_a_grammar_are_read_in_one_pass(
    plain: DemoDevice, drafting: DemoDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchedRunner, "may_draft", lambda *_: True)
    fields: dict[str, Any] = {"grammar": FORCED, "max_tokens": 60, "sampling": Sampling(1.0, seed=7)}
    wanted = answer(plain, 1, **fields)
    assert answer(drafting, 1, **fields) == wanted
    assert drafting.reason(1) == FinishReason.STOP
    assert drafting.end(1).num_accepted > len(wanted) / 2


@pytest.mark.parametrize("prediction", [[5], [7] * 40, list(range(300, 340))])
def test_a_wrong_prediction_changes_nothing(plain: DemoDevice, drafting: DemoDevice, prediction: list[int]) -> None:
    assert answer(drafting, 1, prediction=prediction) == answer(plain, 1)


def test_answer_ends_at_its_limit_within_a_draft(plain: DemoDevice, drafting: DemoDevice) -> None:
    wanted = answer(plain, 1, max_tokens=24)
    for limit in range(1, 24):
        assert answer(drafting, limit, max_tokens=limit, prediction=wanted) == wanted[:limit]
        assert drafting.reason(limit) == FinishReason.LENGTH


def test_log_probabilities_come_with_each_token_of_a_draft(plain: DemoDevice, drafting: DemoDevice) -> None:
    wanted = answer(plain, 1, top_logprobs=3)
    assert answer(drafting, 1, top_logprobs=3, prediction=wanted) == wanted
    assert drafting.end(1).num_accepted > 0
    found = drafting.logprobs(1)
    assert [each.token for each in found] == wanted
    np.testing.assert_allclose(
        [each.logprob for each in found], [each.logprob for each in plain.logprobs(1)], atol=0.05
    )


def test_only_accepted_tokens_are_cached(loaded: LoadedModel, drafting: DemoDevice) -> None:
    assert isinstance(loaded.main, BatchedRunner)
    drafting.submit(1, COUNT, prediction=answer(drafting, 2)[:20] + [9] * 20)
    while len(drafting.tokens(1)) < 20:
        drafting.steps(1)
        if drafting.scheduler.running:
            (sequence,) = drafting.scheduler.running
            slot = loaded.main.slots.of(sequence.id)
            assert slot.tokens == sequence.tokens[: sequence.num_read]
    drafting.run(1)


@pytest.mark.parametrize("fields", [{"exact": True}, {"sampling": Sampling(temperature=1.0, seed=1)}])
def test_seeded_and_exact_answers_have_the_same_bits_with_drafts(
    remembering: DemoDevice, fields: dict[str, Any]
) -> None:
    fields |= {"answer_memory": "alice", "top_logprobs": 1}
    wanted = answer(remembering, 1, **fields)
    assert answer(remembering, 2, **fields, prediction=wanted) == wanted
    assert remembering.end(2).num_accepted > 0
    assert remembering.logprobs(1) == remembering.logprobs(2)


def test_a_cancelled_answer_gets_nothing_after_its_draft(drafting: DemoDevice) -> None:
    wanted = answer(drafting, 1)
    drafting.submit(2, COUNT, prediction=wanted)
    drafting.run_to(2, 1)
    drafting.steps(1)
    before = drafting.tokens(2)
    assert before == wanted[: len(before)]
    drafting.put(Cancel(2))
    answer(drafting, 3)
    assert drafting.tokens(2) == before
    assert drafting.ends(2) == []


def test_a_failed_pass_with_a_draft_ends_its_answer_only(drafting: DemoDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = answer(drafting, 1)
    with monkeypatch.context() as patch:
        patch.setattr(DecoderSession, "run", Mock(side_effect=RunnerFailed("no memory")))
        drafting.submit(2, COUNT, prediction=wanted)
        drafting.run(2)
    assert answer(drafting, 3, prediction=wanted) == wanted
