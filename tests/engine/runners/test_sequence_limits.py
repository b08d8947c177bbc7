"""The limit of a sequence's length, by the model's context, the settings and the memory."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genai_server.engine.kv_cache.buffers import padding_bytes, page_tokens
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_cross_decoder, read_decoder_graph
from genai_server.engine.runners import sequence_limits
from genai_server.engine.runners.sequence_limits import (
    allowed,
    batch_limits,
    generator_limits,
    longest_text,
    with_cache_type,
    with_limit,
)
from genai_server.messages.generation_request import ModelInfo, Sampling
from tests.engine.hybrids import BUILT
from tests.engine.runners.test_load_model import spec
from tests.running_server import DEMO

GRAPH = read_decoder_graph(DEMO)
CONTEXT = 131_072
MODEL = ModelInfo(CONTEXT, 100, [1], Sampling())

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="slots share memory on Linux")


def limited(max_length: int, num_bytes: int, **settings: Any) -> tuple[int, str, int]:
    """The limit of a sequence, what sets it, and the number of slots."""
    limits, model = batch_limits(spec(max_length, kv_cache_bytes=num_bytes, **settings), GRAPH, MODEL)
    assert model.max_length == limits.max_length
    return model.max_length, model.limited_by, limits.num_slots


@pytest.mark.parametrize(
    ("max_length", "affordable", "limit", "words"),
    [
        (0, None, 100, "the model's context"),
        (0, 50, 50, "memory"),
        (0, 100, 100, "the model's context"),
        (60, 50, 60, "GENAI_MAX_LENGTH"),
        (100, None, 100, "the model's context"),
        (101, None, 100, "the model's context"),
    ],
)
def test_the_smallest_limit_holds_and_is_named(max_length: int, affordable: int | None, limit: int, words: str) -> None:
    model = with_limit(ModelInfo(100, 9, [1], Sampling()), max_length, affordable, "memory")
    assert (model.max_length, model.limited_by) == (limit, words)


def test_auto_allows_the_context_where_the_memory_holds_it() -> None:
    assert limited(0, 2 * CONTEXT * GRAPH.bytes_per_token) == (CONTEXT, "the model's context", 4)


@needs_linux
@pytest.mark.parametrize("tokens", [3000, 20_000, 100_001])
def test_auto_keeps_all_slots_and_gives_the_rest_to_one_sequence(tokens: int) -> None:
    memory = tokens * GRAPH.bytes_per_token
    limit, *rest = limited(0, memory)
    assert tokens - 1024 - 5 * page_tokens(GRAPH) <= limit <= tokens
    assert limit % 1024 == 0
    assert rest == [f"memory: {memory} bytes for keys and values, GENAI_KV_CACHE_BYTES", 4]


@needs_linux
def test_little_memory_runs_fewer_requests_of_short_length() -> None:
    limit, words, slots = limited(0, 600 * GRAPH.bytes_per_token, max_batch_size=32)
    assert 500 < limit < 600
    assert words.startswith("memory")
    assert 1 <= slots < 32


@needs_linux
def test_sounds_take_no_memory_for_checkpoints() -> None:
    graph = read_cross_decoder(BUILT / "whisper")
    limits, _ = batch_limits(spec(0), graph, check_model_directory(BUILT / "whisper"))
    assert graph.bytes_per_row
    assert limits.memory.checkpoint_pages == 0
    assert limits.memory.max_pages == limits.num_slots * limits.memory.min_pages


def test_whole_slots_leave_memory_for_several_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.engine.kv_cache.buffers.can_reserve", lambda *_: False)
    limit, _, slots = limited(0, 80_000 * GRAPH.bytes_per_token, max_batch_size=16)
    assert 18_000 < limit < 20_000
    assert slots == 4


def test_sixteen_bits_are_chosen_where_the_context_does_not_fit() -> None:
    for share, half in ((1, False), (0.9, True)):
        memory = int(share * CONTEXT * GRAPH.bytes_per_token)
        graph = with_cache_type(spec(0, kv_cache_type="auto", kv_cache_bytes=memory), GRAPH, CONTEXT)
        assert (graph.cache_type is np.float16) == half


@needs_linux
def test_int8_counts_a_scale_of_each_head_and_pages_that_are_used_in_part() -> None:
    graph = with_cache_type(spec(0, kv_cache_type="int8"), GRAPH, CONTEXT)
    assert graph.cache_width == GRAPH.head_size + 4
    assert graph.bytes_per_token == GRAPH.bytes_per_token // 4 * graph.cache_width // GRAPH.head_size
    page = page_tokens(graph) * graph.bytes_per_token
    num_bytes = 20 * page + 4 * padding_bytes(graph)
    limits, _ = batch_limits(spec(8 * page_tokens(graph), kv_cache_bytes=num_bytes), graph, MODEL)
    assert (limits.num_slots, limits.memory.num_pages) == (4, 16)
    assert limits.memory.own_bytes == 4 * (page + padding_bytes(graph))


def test_attention_has_the_type_of_the_setting() -> None:
    given = [with_cache_type(spec(0, attention_type=kind), GRAPH, CONTEXT) for kind in ("fp32", "bf16")]
    assert [graph.has_bf16_attention for graph in given] == [False, True]


@pytest.mark.parametrize(
    ("max_length", "num_bytes", "device", "tokens", "words"),
    [
        pytest.param(0, 5000 * GRAPH.bytes_per_token, "cpu", 5000, "memory: ", id="memory"),
        pytest.param(0, None, "cuda", 4 * 2048, "memory: 4 times 2048 tokens", id="unknown memory"),
        pytest.param(50_000, 1, "cpu", 50_000, "GENAI_MAX_LENGTH", id="a set length is never reduced"),
    ],
)
def test_generators_share_the_memory_by_tokens(
    max_length: int, num_bytes: int | None, device: str, tokens: int, words: str
) -> None:
    known: dict[str, Any] = {} if num_bytes is None else {"kv_cache_bytes": num_bytes}
    memory, model = generator_limits(spec(max_length, device=device, **known), DEMO, MODEL)
    assert (memory.pages(7), memory.num_pages, model.max_length) == (7, tokens, tokens)
    assert model.limited_by.startswith(words)


def test_generators_of_an_unknown_graph_share_some_tokens(tmp_path: Path) -> None:
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"decoder": {}}}))
    memory, model = generator_limits(spec(0), tmp_path, MODEL)
    assert memory.num_pages == model.max_length == 4 * 2048


def test_long_texts_are_limited_by_the_memory_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_limits, "free_memory", lambda: 2 * 16 * 12 * 4096**2)
    short = ModelInfo(512, 100, [1], Sampling())
    cases = [(0, MODEL, 16), (0, MODEL, 1600), (9999, MODEL, 16), (0, short, 16)]
    found = [longest_text(spec(length), model, heads).max_length for length, model, heads in cases]
    assert found == [4096, 2048, 9999, 512]


@pytest.mark.parametrize(
    ("free", "bytes_", "source"),
    [
        (None, 2**30, "the default where the free memory is unknown, as that of cuda:1 is"),
        (0, 0, "four fifths of what the weights leave of cuda:1"),
    ],
)
def test_memory_of_a_gpu_never_follows_that_of_the_host(
    free: int | None, bytes_: int, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_limits, "free_gpu_memory", lambda device_id: free)
    found = allowed(spec(0, device="cuda:1"))
    assert (found.bytes, found.source) == (bytes_, source)
