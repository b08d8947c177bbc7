"""KV memory that running requests share, on the demo model: the number of running requests, and their real memory."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genai_server.config.settings import Settings
from genai_server.config.sources import engine_spec
from genai_server.engine import process
from genai_server.engine.kv_cache.buffers import CpuBuffers, page_tokens
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.runners.load_model import load_batched
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.engine.scheduling.scheduler_output import UNSHARED, KvMemory
from genai_server.engine.sequence import Sequence
from genai_server.messages.launch import Resize
from tests.resident import resident_bytes
from tests.running_server import DEMO
from tests.stepped_loop import SteppedLoop
from tests.tokens import text

MAX_LENGTH = 512
SLOTS = 16

GRAPH = read_decoder_graph(DEMO)
# The memory of four requests of full length.
LIMIT = 4 * GRAPH.bytes_per_token * (MAX_LENGTH + page_tokens(GRAPH))

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="slots share memory on Linux")


def test_a_slot_has_a_page_of_its_own_and_shares_the_others() -> None:
    memory = KvMemory(16, 10)
    assert [memory.pages(tokens) for tokens in (0, 15, 16, 160)] == [0, 0, 1, 10]
    assert memory.num_tokens(4) == 14 * 16


def test_unshared_memory_is_unlimited() -> None:
    assert UNSHARED.pages(10**9) == UNSHARED.num_pages == UNSHARED.num_tokens(4) == 0


class Device(SteppedLoop):
    """An engine loop on the demo model with a limited KV memory."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        spec = msgspec.structs.replace(
            engine_spec(Settings.model_validate({}), "cpu", str(DEMO)),
            max_length=MAX_LENGTH,
            max_batch_size=SLOTS,
            kv_cache_bytes=limit,
            cache_dir="",
        )
        batched = load_batched(spec, DEMO, check_model_directory(DEMO))
        loaded = LoadedModel(batched, batched)
        super().__init__(loaded, process.make_scheduler(spec, loaded), model_guidance(DEMO, batched.model), folder)
        assert isinstance(batched.buffers, CpuBuffers)
        self._buffers = batched.buffers
        self.max_resident = 0
        self.max_running = 0
        self._num_asked = 0

    def submit(self, num_prompt: int, max_tokens: int, *, prompt: int = 0, **fields: Any) -> int:
        """Submit a request with a prompt of this number, or else with a unique one; returns its key."""
        self._num_asked += 1
        self.submit_prompt(self._num_asked, text(num_prompt, prompt or self._num_asked), max_tokens, **fields)
        return self._num_asked

    def submit_prompt(self, key: int, prompt: list[int], max_tokens: int, **fields: Any) -> None:
        self.put_request(key, prompt, max_tokens=max_tokens, max_length=MAX_LENGTH, ignore_eos=True, **fields)

    @property
    def resident(self) -> int:
        """Bytes of keys and values in memory."""
        return resident_bytes(self._buffers)

    def run_all(self) -> None:
        """Step until all requests have ended."""
        while not (self.loop.inbox.empty() and self.scheduler.is_idle):
            self.steps(1)
            self.max_running = max(self.max_running, len(self.scheduler.running))
            self.max_resident = max(self.max_resident, resident_bytes(self._buffers))

    def answer(self, key: int) -> list[int]:
        """The tokens of a finished answer."""
        self.end(key)
        return self.tokens(key)


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


@needs_linux
def test_memory_of_four_long_requests_runs_sixteen_short_ones(device: Device) -> None:
    keys = [device.submit(70, 30) for _ in range(SLOTS)]
    device.run_all()
    assert device.max_running == SLOTS
    assert {len(device.answer(key)) for key in keys} == {30}
    assert device.max_resident <= LIMIT


@needs_linux
def test_long_requests_wait_for_memory_within_the_limit(device: Device) -> None:
    """In the meantime, cached prefixes of finished requests fill the memory and are evicted."""
    for _ in range(SLOTS):
        device.submit(100, 3)
    device.run_all()
    assert device.max_running == SLOTS
    device.max_running = 0
    for _ in range(5):
        device.submit(450, MAX_LENGTH - 450)
        device.submit(25, 3)
    device.run_all()
    assert 4 <= device.max_running <= 8
    assert 0.8 * LIMIT < device.max_resident <= LIMIT


@needs_linux
def test_answers_without_a_limit_are_not_changed_by_preemptions(tmp_path: Path) -> None:
    """Two of them begin, and have memory for one and a half: the second one waits until the first one has ended."""
    device = Device(tmp_path, LIMIT // 2)
    preempted: list[Sequence] = []

    def preempt(sequence: Sequence, then: Callable[[Sequence], None] = device.scheduler.on_preempt) -> None:
        preempted.append(sequence)
        then(sequence)

    device.scheduler.on_preempt = preempt
    alone = device.submit(20, MAX_LENGTH - 20, prompt=1)
    device.run_all()
    assert preempted == []
    for _ in range(9):  # the next answers are expected to be short
        device.scheduler._step_times.answered(50)
    keys = [device.submit(20, MAX_LENGTH - 20, prompt=number) for number in (2, 1)]
    device.run_all()
    assert [sequence.origin[1] for sequence in preempted] == keys[1:]
    assert device.max_running == 2
    assert device.answer(keys[1]) == device.answer(alone)
    assert len(device.answer(alone)) == MAX_LENGTH - 20
    assert device.max_resident <= LIMIT


@needs_linux
def test_smaller_memory_preempts_requests_and_frees_pages_at_once(tmp_path: Path) -> None:
    device = Device(tmp_path)
    memory = device.scheduler._memory
    whole = memory.num_pages
    for number in range(9):  # prefixes that stay cached
        device.submit(100, 3, prompt=100 + number)
    device.run_all()
    keys = [device.submit(100, 100) for _ in range(8)]
    device.step_until(lambda: len(device.scheduler.running) == 8)
    device.steps(40)
    before = device.resident
    device.put(Resize(memory.own_bytes + 40 * memory.page_bytes))
    device.steps(1)
    assert memory.num_pages == 40
    assert 0 < len(device.scheduler.running) < 8
    assert device.resident <= memory.own_bytes + 40 * memory.page_bytes < before
    device.put(Resize(0))
    device.steps(1)
    assert memory.num_pages == memory.min_pages == MAX_LENGTH // memory.page_tokens
    device.put(Resize(LIMIT))
    device.run_all()
    assert memory.num_pages == whole
    assert [len(device.answer(key)) for key in keys] == [100] * 8


def test_memory_of_fixed_size_is_not_changed() -> None:
    memory = KvMemory(16, 10, own_bytes=7)
    memory.resize(10**9)
    assert (memory.num_pages, memory.min_bytes, memory.max_bytes) == (10, 7, 7)
