"""The memory that a device has left for keys and values, on the CPU in place of a device."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.kv_cache.layout import Layout
from genai_server.engine.kv_cache.paged_buffers import PagedBuffers
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.runners import gpu_kv_cache_size
from genai_server.engine.runners.batched import DecoderSession
from genai_server.engine.runners.gpu_kv_cache_size import with_memory_left
from genai_server.engine.runners.sequence_limits import allowed
from genai_server.engine.scores import Scores
from genai_server.errors import RunnerFailed
from genai_server.messages.launch import EngineSpec
from tests.engine.paged_operator import BLOCK, ON_CPU, open_expanded
from tests.engine.runners.test_load_model import spec
from tests.running_server import DEMO

MODEL = check_model_directory(DEMO)
FREE = 1_000_000


@pytest.fixture(scope="module")
def graph() -> DecoderGraph:
    return replace(read_decoder_graph(DEMO), block_tokens=BLOCK)


@pytest.fixture(scope="module")
def session(graph: DecoderGraph) -> Any:
    return open_expanded(graph, offers_best=True)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kv_cache_size, "buffers_on", lambda *where: partial(PagedBuffers, ON_CPU, where[-1]))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Tokens and logits of each pass. None is computed, which takes seconds without a device."""
    found: list[tuple[int, int]] = []

    def noted(self: DecoderSession, layout: Layout) -> list[Scores]:
        found.append((layout.num_tokens, layout.num_logits))
        return [Scores(np.zeros((layout.num_logits, 1), np.float32))]

    monkeypatch.setattr(DecoderSession, "scores", noted)
    monkeypatch.setattr(gpu_kv_cache_size, "free_gpu_memory", lambda device_id: FREE if found else 99 * FREE)
    return found


Measure = Callable[[EngineSpec], EngineSpec]


@pytest.fixture
def measured(graph: DecoderGraph, session: Any) -> Measure:
    return lambda given: with_memory_left(given, graph, session, MODEL)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"prefill_chunk": 0}, (400, 256)),
        ({"prefill_chunk": 300}, (300, 256)),
        ({"prefill_chunk": 100}, (256, 256)),  # an idle engine's chunks are longer
        ({"prefill_chunk": 0, "max_batch_size": 300}, (400, 300)),
    ],
)
def test_memory_is_what_the_largest_pass_leaves(
    measured: Measure, passes: list[tuple[int, int]], settings: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert allowed(measured(spec(400, device="cuda", **settings))).bytes == 0.9 * FREE
    assert passes == [expected]


def test_memory_that_is_set_is_not_measured(measured: Measure, passes: list[tuple[int, int]]) -> None:
    given = spec(400, device="cuda", kv_cache_bytes=123_456)
    assert measured(given) == given
    assert not passes


def test_unknown_free_memory_keeps_the_default(measured: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass on the CPU."""
    monkeypatch.setattr(gpu_kv_cache_size, "free_gpu_memory", lambda device_id: None)
    given = spec(400, device="cuda")
    assert measured(given) == given


def test_lack_of_memory_for_the_pass_is_a_runner_failure(
    measured: Measure, passes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gpu_kv_cache_size, "buffers_on", lambda *where: Mock(side_effect=RuntimeError("Failed to allocate memory"))
    )
    with pytest.raises(RunnerFailed, match="no memory for keys and values: Failed to allocate"):
        measured(spec(400, device="cuda"))
