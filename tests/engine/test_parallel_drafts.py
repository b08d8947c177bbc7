"""A draft model that drafts in parallel, in one pass for each draft: the demo model, which was not trained for that.

So the first token of a draft is usually right, and the others are wrong. Drafts are judged as if passes of any length
took the same time, so the results do not depend on the machine.
"""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _models.driven import engine_spec
from msgspec import structs

from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.draft_model import DraftModel
from genai_server.engine.runners.load_model import load_model
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.drafts import NO_DRAFT, Acceptance, TextDrafts
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scores import Logits, Scores
from genai_server.messages.generation_request import FinishReason, Sampling
from tests.demo_device import MAX_LENGTH, DemoDevice, prompt
from tests.engine.model_runners import batched_runner, greedy_logits
from tests.engine.scheduling.scheduled import FreePasses
from tests.engine.test_distributions import END, Answer, deviation, reference
from tests.engine.test_draft_model import FIELDS, a_decoding, read
from tests.running_server import DEMO

pytestmark = pytest.mark.usefixtures("passes_of_any_length_take_the_same_time")
ASKED = "Count from 1 to 12."
TEXTS = (ASKED, "Count from 1 to 11.", "Count from 2 to 12.", "What is the capital of France?")
MASK_TOKEN = 7


@pytest.fixture(scope="module")
def draft_session() -> Any:
    return open_session(read_decoder_graph(DEMO), 1)


@pytest.fixture
def new_model(draft_session: Any) -> Callable[[], DraftModel]:
    """Makes a draft model without any sequences."""

    def make() -> DraftModel:
        runner = batched_runner(session=draft_session, num_slots=6, max_length=MAX_LENGTH)
        model = DraftModel(runner, runner.model.vocab_size, mask_token=MASK_TOKEN)
        model.times = FreePasses()
        return model

    return make


@pytest.fixture
def model(new_model: Callable[[], DraftModel]) -> DraftModel:
    return new_model()


@pytest.fixture
def passes(model: DraftModel, monkeypatch: pytest.MonkeyPatch) -> list[list[ScheduledChunk]]:
    """The draft model's passes."""
    found: list[list[ScheduledChunk]] = []
    forward = model.runner.forward

    def noted(chunks: Sequence[ScheduledChunk]) -> list[Scores]:
        found.append(list(chunks))
        return forward(chunks)

    monkeypatch.setattr(model.runner, "forward", noted)
    return found


@pytest.fixture
def drafting(
    batched: BatchedRunner, model: DraftModel, guidance: Guidance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DemoDevice:
    """Only the draft model drafts, also for answers with a seed."""
    monkeypatch.setattr(BatchedRunner, "may_draft", lambda *_: True)
    monkeypatch.setattr(TextDrafts, "propose", lambda *_: NO_DRAFT)
    batched.forget()
    return DemoDevice(LoadedModel(batched, batched, draft_model=model), guidance, tmp_path, speculates=True)


@pytest.mark.parametrize("kind", ["greedy", "from few tokens", "with a grammar"])
def test_an_answer_has_the_same_tokens_with_parallel_drafts(plain: DemoDevice, drafting: DemoDevice, kind: str) -> None:
    wanted = plain.answer(1, ASKED, **FIELDS[kind])
    assert drafting.answer(1, ASKED, **FIELDS[kind]) == wanted
    end = drafting.end(1)
    assert end.reason == plain.reason(1)
    assert 0 < end.num_accepted <= end.num_drafted


def test_answers_of_a_batch_are_drafted_in_one_pass_a_step(
    plain: DemoDevice, drafting: DemoDevice, passes: list[list[ScheduledChunk]]
) -> None:
    wanted = [plain.answer(key, text) for key, text in enumerate(TEXTS)]
    for key, text in enumerate(TEXTS):
        drafting.submit(key, text)
    drafting.run(*range(len(TEXTS)))
    assert [drafting.tokens(key) for key in range(len(TEXTS))] == wanted
    assert max(map(len, passes)) == len(TEXTS)
    drafted = sum(len(chunk.draft) + 1 for chunks in passes for chunk in chunks if chunk.draft)
    assert max(len(chunk.draft) for chunks in passes for chunk in chunks) > 3
    # Drafts of one token have no mask tokens.
    assert drafted <= sum(drafting.end(key).num_drafted for key in range(len(TEXTS)))


def rounds(model: DraftModel, text: list[int], starts: Sequence[int], length: int) -> list[tuple[list[int], Logits]]:
    """Drafts of `length` tokens after the first `starts` tokens of a text, with the logits from which they come."""
    sequence = a_decoding(1, 1)
    found: list[Logits] = []
    forward = model.runner.forward

    def noted(chunks: Sequence[ScheduledChunk]) -> list[Scores]:
        scores = forward(chunks)
        found.append(scores[0].logits.copy())
        return scores

    model.runner.forward = noted  # type: ignore[method-assign]
    sequence.tokens = text[: starts[0]]
    model.propose([], [(sequence, starts[0] - 1)])
    found.clear()
    drafts = []
    for start in starts:
        sequence.tokens = text[:start]
        drafts += model.propose([(sequence, length)], [])
    return list(zip(drafts, found, strict=True))


@pytest.mark.parametrize("accepted", [0, 2, 7, 20])
def test_mask_tokens_leave_nothing_in_the_cache(
    new_model: Callable[[], DraftModel], plain: DemoDevice, accepted: int
) -> None:
    text = [*prompt(ASKED), *plain.answer(1, ASKED, ignore_eos=True, max_tokens=60)]
    starts = range(len(prompt(ASKED)) + 1, len(text), accepted + 1)[:4]
    model = new_model()
    for start, (draft, logits) in zip(starts, rounds(model, text, starts, 8), strict=True):
        ((fresh, fresh_logits),) = rounds(new_model(), text, [start], 8)
        assert draft == fresh
        assert logits.tobytes() == fresh_logits.tobytes()
    assert model.runner.slots.of(1).tokens == text[: starts[-1]]
    model.close(1)
    (slot,) = [slot for slot in model.runner.slots.slots if slot.tokens]
    assert slot.tokens == text[: len(slot.tokens)]


def test_parallel_drafts_end_with_the_draft_models_length(model: DraftModel) -> None:
    sequence = a_decoding(1, MAX_LENGTH - 5)
    model.runner.model = model.runner.model.__class__(MAX_LENGTH, 1920, [2], Sampling())
    assert model.room(sequence) == 4
    read(model, sequence)
    assert list(map(len, model.propose([(sequence, 4)], []))) == [4]


def test_a_folder_with_a_mask_token_drafts_in_parallel(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "draft")
    given = structs.replace(engine_spec(DEMO, 2, 256), draft_model=str(tmp_path / "draft"), speculation="auto")
    for config, is_parallel in (({}, False), ({"pard_token": MASK_TOKEN}, True)):
        (tmp_path / "draft" / "config.json").write_text(json.dumps(config), encoding="utf-8")
        loaded = load_model(given)
        assert loaded.draft_model is not None
        assert loaded.draft_model.is_parallel == is_parallel


ANSWERS, LONGEST = 600, 4
# The demo model is almost sure of its tokens.
SAMPLING: dict[str, Any] = {"temperature": 6.0, "top_k": 3}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_answers_with_parallel_drafts_have_their_probabilities(
    batched: BatchedRunner, drafting: DemoDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    (end,) = batched.model.eos_token_ids
    asked, expected = prompt(ASKED), defaultdict[Answer, float](float)

    def follow(answer: Answer, probability: float) -> None:
        if answer[-1:] == (end,):
            expected[*answer[:-1], END] += probability
        elif len(answer) == LONGEST:
            expected[answer] += probability
        else:
            batched.forget()  # a cached prefix would be read twice
            logits = greedy_logits(batched, [*asked, *answer], 1)[0]
            chances = reference(logits, SAMPLING, asked, answer, np.ones(logits.size, bool))
            for token in np.flatnonzero(chances).tolist():
                follow((*answer, token), probability * chances[token])

    follow((), 1.0)
    assert sum(expected.values()) == pytest.approx(1)
    batched.forget()
    monkeypatch.setattr(Acceptance, "share", 0.9)
    counts, accepted, drafted = Counter[Answer](), 0, 0
    drafting.answer(ANSWERS, ASKED)  # the draft model reads no prompt for a short answer, but finds it from here on
    for seed in range(ANSWERS):
        tokens = drafting.answer(seed, ASKED, sampling=Sampling(**SAMPLING, seed=seed), max_tokens=LONGEST)
        finished = drafting.end(seed)
        counts[*tokens, *([END] if finished.reason is FinishReason.STOP else [])] += 1
        accepted, drafted = accepted + finished.num_accepted, drafted + finished.num_drafted
        drafting.sent.clear()
    assert counts.keys() <= expected.keys()
    assert ANSWERS / 4 < accepted < 0.9 * drafted
    assert deviation(counts, expected) < 4
