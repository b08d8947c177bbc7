"""KV memory on a CPU: allocated as it is written, and freed."""

import mmap
import sys
from dataclasses import replace

import numpy as np
import pytest

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.kv_cache.buffers import CpuBuffers, padding_bytes, page_tokens
from genai_server.engine.model.graph_reader import read_decoder_graph
from tests.resident import resident_bytes
from tests.running_server import DEMO

ROWS = 4
MAX_LENGTH = 1000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory by pages is Linux's")


@pytest.fixture
def graph() -> DecoderGraph:
    return read_decoder_graph(DEMO)


@pytest.fixture
def buffers(graph: DecoderGraph) -> CpuBuffers:
    return CpuBuffers(graph, ROWS, MAX_LENGTH)


def fill(buffers: CpuBuffers, slot: int, num_tokens: int) -> None:
    for array in buffers.arrays:
        array[slot, :, :num_tokens] = 1


def test_memory_is_taken_as_it_is_written(buffers: CpuBuffers, graph: DecoderGraph) -> None:
    before = resident_bytes(buffers)
    fill(buffers, 1, 5 * page_tokens(graph))
    assert resident_bytes(buffers) - before == 5 * page_tokens(graph) * graph.bytes_per_token
    fill(buffers, 2, 5 * page_tokens(graph) + 1)
    assert resident_bytes(buffers) - before == 11 * page_tokens(graph) * graph.bytes_per_token


def test_rows_are_whole_pages_only_where_memory_is_reserved(
    buffers: CpuBuffers, graph: DecoderGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_LENGTH % page_tokens(graph)
    assert buffers.arrays[0].shape[2] == MAX_LENGTH + -MAX_LENGTH % page_tokens(graph)
    monkeypatch.setattr(sys, "platform", "win32")
    assert CpuBuffers(graph, ROWS, MAX_LENGTH).arrays[0].shape[2] == MAX_LENGTH


def test_memory_of_a_slot_is_freed_from_a_token_on(buffers: CpuBuffers, graph: DecoderGraph) -> None:
    before, tokens = resident_bytes(buffers), page_tokens(graph)
    for slot in range(ROWS):
        fill(buffers, slot, MAX_LENGTH)
    full = resident_bytes(buffers) - before
    buffers.give_back(1, 3 * tokens)
    given = (-(-MAX_LENGTH // tokens) - 3) * tokens * graph.bytes_per_token
    assert resident_bytes(buffers) - before == full - given
    for array in buffers.arrays:
        assert (array[1, :, : 3 * tokens] == 1).all()
        assert (array[1, :, 3 * tokens : MAX_LENGTH] == 0).all()
        assert (array[[0, 2, 3], :, :MAX_LENGTH] == 1).all()


def test_a_slot_of_8_bits_has_at_most_its_pages_and_a_rest(graph: DecoderGraph) -> None:
    """A head's values and scale never fill whole pages of the system's memory."""
    narrow = replace(graph, cache_type=np.int8)
    buffers, tokens = CpuBuffers(narrow, ROWS, MAX_LENGTH), page_tokens(narrow)
    assert tokens * narrow.cache_width % mmap.PAGESIZE
    empty = resident_bytes(buffers)
    for number in (1, tokens, 3 * tokens - 1, 3 * tokens):
        fill(buffers, 1, number)
        pages = -(-number // tokens)
        assert resident_bytes(buffers) - empty <= pages * tokens * narrow.bytes_per_token + padding_bytes(narrow)
    fill(buffers, 2, MAX_LENGTH)
    full = resident_bytes(buffers)
    buffers.give_back(2, tokens)
    assert full - resident_bytes(buffers) >= (MAX_LENGTH - 1 - tokens) * narrow.bytes_per_token - padding_bytes(narrow)
    for array in buffers.arrays:
        assert (array[1, :, : 3 * tokens] == 1).all()
        assert (array[2, :, :tokens] == 1).all()
    assert not padding_bytes(graph)
