"""Answers on a device have drafts, and are the same without: on the demo model, in a batch for a device on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.kv_cache.paged_buffers import PagedBuffers
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.messages.generation_request import Sampling
from tests.demo_device import MAX_LENGTH, DemoDevice
from tests.engine.paged_operator import BLOCK, on_blocks, open_expanded
from tests.engine.test_speculation import ASKED, COUNT, FORCED, answer
from tests.running_server import DEMO

SLOW = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("passes_of_any_length_take_the_same_time")


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    graph = replace(read_decoder_graph(DEMO), block_tokens=BLOCK)
    session = open_expanded(graph, offers_best=True)
    runner = on_blocks(session, graph, num_slots=6, max_length=MAX_LENGTH)
    return LoadedModel(runner, runner)


@pytest.fixture
def drafting(loaded: LoadedModel, guidance: Guidance, tmp_path: Path) -> DemoDevice:
    return DemoDevice(loaded, guidance, tmp_path, speculates=True, answers=AnswerMemory(10**6))


@pytest.fixture(scope="module")
def counted(loaded: LoadedModel, guidance: Guidance, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """The greedy answer, without drafts."""
    return answer(DemoDevice(loaded, guidance, tmp_path_factory.mktemp("plain")), 1)


@pytest.mark.parametrize(
    # The fields are the same as in the batch on the CPU; these choose tokens by other means on a device.
    "kind",
    [
        kind if kind in ("greedy", "with a grammar", "from few tokens") else pytest.param(kind, marks=SLOW)
        for kind in ASKED
    ],
)
def test_an_answer_has_the_same_tokens_with_drafts(
    plain: DemoDevice, drafting: DemoDevice, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # With a seed there are no drafts, and none where most tokens need all logits.
    monkeypatch.setattr(BatchedRunner, "may_draft", lambda *_: True)
    wanted = answer(plain, 1, **ASKED[kind])
    for key, prediction in enumerate(([], wanted), 1):
        assert answer(drafting, key, **ASKED[kind], prediction=prediction) == wanted
        assert drafting.end(key).reason == plain.end(1).reason
    assert drafting.end(2).num_accepted > len(wanted) / 2


def test_keys_of_rejected_tokens_are_overwritten(counted: list[int], drafting: DemoDevice) -> None:
    prediction = [7 if place % 5 == 4 else token for place, token in enumerate(counted)]
    assert answer(drafting, 1, prediction=prediction) == counted
    assert 0 < drafting.end(1).num_accepted < drafting.end(1).num_drafted


@pytest.mark.parametrize(
    ("fields", "may_draft"),
    [
        ({}, True),
        ({"top_logprobs": 5}, True),
        ({"sampling": Sampling(0.7, top_k=20, presence_penalty=1.0)}, True),
        ({"sampling": Sampling(0.7)}, True),
        ({"sampling": Sampling(0.7, presence_penalty=1.0)}, False),
        ({"sampling": Sampling(logit_bias={300: 2.0})}, False),
        ({"sampling": Sampling(0.7), "top_logprobs": 5}, False),
        ({"sampling": Sampling(0.7), "grammar": FORCED}, False),
        ({"grammar": FORCED}, True),
    ],
    ids=str,
)
def test_sequences_that_need_all_logits_have_no_drafts(
    counted: list[int], drafting: DemoDevice, fields: dict[str, Any], *, may_draft: bool
) -> None:
    answer(drafting, 1, **fields, prediction=counted, max_tokens=12)
    assert (drafting.end(1).num_drafted > 0) == may_draft


def test_concurrent_answers_with_drafts_copy_no_logits(
    counted: list[int], drafting: DemoDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PagedBuffers, "read", lambda *_: pytest.fail("all logits were copied"))
    for key in (2, 3, 4):
        drafting.submit(key, COUNT, prediction=counted)
    drafting.run(2, 3, 4)
    for key in (2, 3, 4):
        assert drafting.tokens(key) == counted
        assert drafting.end(key).num_accepted > len(counted) / 2
