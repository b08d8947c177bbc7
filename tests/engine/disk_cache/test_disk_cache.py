"""Prefixes on disk, with the loop on real models: an answer after a restart is the one before it, bit for bit."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from genai_server.config.sources import engine_spec
from genai_server.engine import disk_cache
from genai_server.engine.disk_cache import DiskCache, open_disk_cache
from genai_server.engine.disk_cache_files import SegmentFolder, SlotMemory, write_segment
from genai_server.engine.encoded_inputs import EncodedImage
from genai_server.engine.kv_cache.buffers import CpuBuffers
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.runners.base import open_bare
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.load_model import load_batched
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.errors import InvalidField
from genai_server.messages.admin import CacheReset, ResetPrefixCache
from genai_server.messages.engine_protocol import Cancel, DiskCacheFigures, Finished, Tokens
from genai_server.messages.generation_request import Adapter, GenerationRequest, Sampling, TokenLogprob
from genai_server.messages.launch import EngineSpec
from tests.engine.hybrids import Hybrid
from tests.engine.model_runners import batched_runner
from tests.given_settings import given
from tests.hand_clock import HandClock
from tests.running_server import DEMO
from tests.stepped_loop import SteppedLoop

MAX_LENGTH, SEGMENT = 512, 32
PROMPT = [3 + (number * number) % 290 for number in range(200)]


class Threads(Executor):
    """Runs what is submitted at once, or when `run` is called."""

    def __init__(self) -> None:
        self.is_held = False
        self.held: list[Callable[[], Any]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.held.append(lambda: work(*arguments, **named))
        if not self.is_held:
            self.run()
        return Future()

    def run(self) -> None:
        held, self.held = self.held, []
        for work in held:
            work()


class Engine(SteppedLoop):
    """A loop on a model, with a prefix cache on disk."""

    def __init__(
        self,
        folder: Path,
        batched: BatchedRunner,
        clock: HandClock,
        *,
        stored_type: Any = np.float32,
        max_bytes: int = 10**9,
        chunk: int = 256,
    ) -> None:
        self.clock, self.batched = clock, batched
        self.loads, self.stores = Threads(), Threads()
        assert isinstance(batched.buffers, CpuBuffers)
        states = batched.states if batched.slots.keeps_states else None
        self.arrays = arrays = batched.buffers.arrays
        per_token = sum(array.shape[1] * array.shape[3] * np.dtype(stored_type).itemsize for array in arrays)
        self.disk = DiskCache(
            SegmentFolder(folder, "model", max_bytes),
            SlotMemory(arrays, states, stored_type, SEGMENT * per_token),
            batched.slots,
            loads=self.loads,
            stores=self.stores,
            clock=clock,
        )
        scheduler = Scheduler(batched, max_running=4, max_waiting=4, prefill_chunk=chunk)
        loaded = LoadedModel(batched, batched, disk_cache=self.disk)
        super().__init__(loaded, scheduler, Guidance(None, 300, "not here"), folder.parent, clock=clock)

    def restart(self) -> None:
        """Lose everything in memory."""
        self.batched.forget()
        for array in self.arrays:
            array[:] = np.nan if array.dtype.kind == "f" else 99

    def submit(self, key: int, prompt: list[int], **fields: Any) -> None:
        given: dict[str, Any] = {
            "max_tokens": 8,
            "max_length": MAX_LENGTH,
            "top_logprobs": 1,
            "sampling": Sampling(temperature=0.0),
            "ignore_eos": True,
        }
        self.put_request(key, prompt, **given | fields)

    def answer(self, key: int, prompt: list[int], **fields: Any) -> tuple[list[TokenLogprob], int]:
        """The log probabilities of an answer's tokens, and how many tokens of its prompt were cached."""
        self.submit(key, prompt, **fields)
        self.run(key)
        return self.result(key)

    def result(self, key: int) -> tuple[list[TokenLogprob], int]:
        found = [logprob for message in self.messages(Tokens, key) for logprob in message.logprobs]
        return found, self.messages(Finished, key)[0].num_cached

    def stay(self, *seconds: float) -> None:
        """Let time pass, and what stays in slots be stored: by default what stays there long enough."""
        for each in seconds or (2, 100):
            self.clock.now += each
            self.disk.store()

    @property
    def figures(self) -> DiskCacheFigures:
        return self.disk.figures(0.0)


@pytest.fixture(scope="module")
def batched(session: Any) -> BatchedRunner:
    return batched_runner(session=session, max_length=MAX_LENGTH)


MakeEngine = Callable[..., Engine]


@pytest.fixture
def start(batched: BatchedRunner, clock: HandClock, tmp_path: Path) -> MakeEngine:
    """Starts an engine, on the demo model unless another batch is given, as if after a restart."""

    def started(batched: BatchedRunner = batched, **how: Any) -> Engine:
        engine = Engine(tmp_path / "prefixes", batched, clock, **how)
        engine.restart()
        return engine

    return started


@pytest.fixture
def files(tmp_path: Path) -> Callable[[], list[Path]]:
    """Returns the files that are stored."""
    return lambda: sorted((tmp_path / "prefixes").rglob("*.kv"))


def stored(start: MakeEngine, prompt: list[int] = PROMPT, **fields: Any) -> list[TokenLogprob]:
    """Have a prompt read and stored; returns its answer."""
    engine = start()
    found, _ = engine.answer(1, prompt, **fields)
    engine.stay()
    assert engine.figures.stored_tokens >= SEGMENT
    return found


def loading(start: MakeEngine, *, is_held: bool = False) -> tuple[Engine, list[TokenLogprob]]:
    """An engine that has stored the prompt before a restart, and the prompt's answer. It may hold loads back."""
    before, engine = stored(start), start()
    engine.loads.is_held = is_held
    return engine, before


def test_prefix_of_an_adapter_outlives_the_adapters_id(adapted: Path, start: MakeEngine) -> None:
    batched = batched_runner(adapted, max_length=MAX_LENGTH)
    lively, dreamy = (str(adapted / f"{name}.onnx_adapter") for name in ("lively", "dreamy"))
    engine = start(batched)
    expected, _ = engine.answer(1, PROMPT, adapter=Adapter("lively", lively, "1"))
    engine.stay()
    assert start(batched).answer(2, PROMPT, adapter=Adapter("lively", lively, "2")) == (expected, 192)
    for key, adapter in enumerate([None, Adapter("dreamy", dreamy, "3")], 3):
        assert start(batched).answer(key, PROMPT, adapter=adapter)[1] == 0


def test_a_prompt_is_loaded_after_a_restart(start: MakeEngine) -> None:
    engine, before = loading(start)
    assert engine.answer(1, PROMPT) == (before, 192)  # complete segments
    assert engine.figures.loaded_tokens == 192


def test_another_prompt_loads_what_it_has_in_common(start: MakeEngine) -> None:
    stored(start)
    other = [*PROMPT[:100], *reversed(PROMPT[100:])]
    expected, _ = start().answer(1, other, cache_prompt=False)
    assert start().answer(1, other) == (expected, 96)


def test_a_slot_with_some_of_it_takes_the_rest(start: MakeEngine) -> None:
    engine, before = loading(start)
    engine.answer(1, PROMPT[:24])
    assert engine.answer(2, PROMPT) == (before, 192)
    assert engine.figures.loaded_tokens == 192 - 24


@pytest.mark.parametrize("low_priority", [False, True])
def test_neither_a_short_stay_nor_a_prompt_of_the_background_is_stored(start: MakeEngine, low_priority: bool) -> None:
    engine = start()
    engine.answer(1, PROMPT, low_priority=low_priority)
    engine.stay(2, 10_000 / len(PROMPT) / 2)
    assert engine.figures.stored_tokens == 0
    engine.stay(10_000 / len(PROMPT))
    assert engine.figures.stored_tokens == (0 if low_priority else 192)


def test_a_prefix_is_stored_once(start: MakeEngine, files: Callable[[], list[Path]]) -> None:
    stored(start)
    before = {path: path.stat().st_ino for path in files()}
    engine = start()
    engine.answer(1, PROMPT)
    engine.stay(2, 1000)
    assert {path: path.stat().st_ino for path in files()} == before


def test_another_salt_loads_nothing(start: MakeEngine) -> None:
    stored(start, cache_salt="one")
    assert start().answer(1, PROMPT, cache_salt="other")[1] == 0
    assert start().answer(1, PROMPT)[1] == 0
    assert start().answer(1, PROMPT, cache_salt="one")[1] == 192


def test_a_request_without_cache_loads_nothing(start: MakeEngine) -> None:
    engine, _ = loading(start)
    assert engine.answer(1, PROMPT, cache_prompt=False)[1] == 0
    assert engine.figures.loads == 0


@pytest.mark.parametrize("damage", ["flipped", "gone", "link"])
def test_a_bad_file_costs_a_miss(start: MakeEngine, files: Callable[[], list[Path]], damage: str) -> None:
    engine, before = loading(start)
    for path in files()[2:]:
        content = path.read_bytes()
        path.unlink()
        if damage == "flipped":
            path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        elif damage == "link":
            path.symlink_to("/etc/passwd")
    after, num_cached = engine.answer(1, PROMPT)
    assert num_cached <= 2 * SEGMENT
    assert after == before


def test_a_cancelled_sequence_is_written_nothing(start: MakeEngine) -> None:
    engine, _ = loading(start, is_held=True)
    engine.submit(1, PROMPT)
    engine.steps(2)
    assert engine.loads.held
    engine.put(Cancel(1))
    engine.steps(1)
    assert engine.scheduler.is_idle
    engine.loads.run()
    assert all(np.isnan(array).all() for array in engine.arrays)
    engine.steps(1)
    engine.loads.is_held = False
    assert engine.answer(2, PROMPT)[1] == 192


def test_a_slow_disk_is_not_waited_for(start: MakeEngine) -> None:
    engine, before = loading(start, is_held=True)
    engine.submit(1, PROMPT)
    engine.steps(3)
    assert not engine.tokens(1)
    engine.clock.now += 60
    engine.run(1)
    engine.loads.run()
    assert engine.result(1) == (before, 0)
    # Nothing was written over what the sequence has read itself.
    assert engine.answer(2, PROMPT)[0] == before


def test_loop_waits_no_longer_than_for_a_load(start: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = loading(start, is_held=True)
    engine.submit(1, PROMPT)
    engine.steps(1)
    waited: list[float | None] = []

    class Inbox:
        def empty(self) -> bool:
            return True

        def get(self, block: bool, timeout: float | None) -> None:
            assert block
            waited.append(timeout)
            raise Empty

    monkeypatch.setattr(engine.loop, "inbox", Inbox())
    engine.steps(1)
    engine.clock.now += 4.8  # of five seconds
    engine.steps(1)
    assert waited == [0.5, pytest.approx(0.2)]


def test_sequences_that_begin_alike_load_once(start: MakeEngine) -> None:
    engine, _ = loading(start, is_held=True)
    for key in range(3):
        engine.submit(key, [*PROMPT, 50 + key, 51, 52])
    engine.steps(3)
    assert len(engine.loads.held) == 1
    engine.loads.run()
    engine.run(0, 1, 2)
    assert engine.figures.loads == 1
    assert [engine.result(key)[1] >= 192 for key in range(3)] == [True] * 3


def test_those_that_wait_for_a_cancelled_one_go_on(start: MakeEngine) -> None:
    engine, _ = loading(start, is_held=True)
    engine.submit(1, PROMPT)
    engine.submit(2, [*PROMPT, 50, 51, 52])
    engine.steps(2)
    engine.put(Cancel(1))
    engine.run(2)
    assert len(engine.result(2)[0]) == 8


def test_a_preempted_follower_waits_for_a_load_of_its_own(start: MakeEngine) -> None:
    longer = [*PROMPT, *range(60, 160)]
    engine = start()
    before, _ = engine.answer(0, longer)
    engine.stay()
    engine.restart()
    engine.loads.is_held = True
    engine.submit(1, PROMPT)
    engine.submit(2, longer)
    engine.steps(2)
    engine.answer(3, longer[:210], cache_prompt=False)
    follower = next(sequence for sequence in engine.scheduler.running if sequence.is_loading and sequence.id == 2)
    engine.scheduler._preempt(follower)
    engine.steps(1)  # it finds those 210 tokens, and loads what follows them
    assert len(engine.loads.held) == 2
    engine.put(Cancel(1))
    engine.steps(2)
    assert (follower.is_loading, follower.num_read) == (True, 210)
    engine.loads.run()
    engine.run(2)
    assert engine.result(2)[0] == before


def test_tokens_that_a_preempted_sequence_loads_count_once(start: MakeEngine) -> None:
    engine, _ = loading(start)
    assert engine.answer(1, PROMPT)[1] == 192
    hits = engine.loop._meter._cache_hits
    engine.restart()
    engine.submit(2, PROMPT, max_tokens=20)
    engine.loads.is_held = True
    engine.steps(2)
    engine.loads.run()
    engine.steps(3)
    (sequence,) = engine.scheduler.running
    engine.scheduler._preempt(sequence)
    engine.restart()
    engine.steps(2)
    engine.loads.run()
    engine.run(2)
    assert engine.figures.loads == 3
    assert engine.loop._meter._cache_hits == 2 * hits == 384


def test_a_reset_removes_what_is_stored(start: MakeEngine, files: Callable[[], list[Path]]) -> None:
    engine, _ = loading(start)
    engine.ask(ResetPrefixCache(5), CacheReset)
    assert engine.answer(1, PROMPT)[1] == 0
    assert not files()


def test_prefix_being_stored_at_a_reset_is_dropped(start: MakeEngine, files: Callable[[], list[Path]]) -> None:
    engine = start()
    engine.answer(1, PROMPT)
    engine.stores.is_held = True
    engine.stay()
    assert engine.stores.held
    engine.ask(ResetPrefixCache(5), CacheReset)
    engine.stores.run()
    assert not files()


def test_reset_while_a_file_is_written_pauses_nothing(start: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start()
    engine.answer(1, PROMPT)

    def write_and_reset(path: Path, *arguments: Any) -> None:
        write_segment(path, *arguments)
        engine.disk.clear()

    with monkeypatch.context() as interfering:
        interfering.setattr(f"{SegmentFolder.__module__}.write_segment", write_and_reset)
        engine.stay()
    assert (engine.figures.stored_tokens, engine.figures.error) == (0, "")
    engine.stay(2, 50)
    assert engine.figures.stored_tokens == 192


def test_a_slot_that_is_taken_over_is_not_stored(start: MakeEngine) -> None:
    engine = start()
    engine.answer(1, PROMPT)
    engine.stores.is_held = True
    engine.stay()
    for key in range(2, 8):
        engine.answer(key, list(reversed(PROMPT[: 100 + key])))
    engine.stores.run()
    assert engine.figures.stored_tokens == 0
    assert start().answer(1, PROMPT)[1] == 0


def test_a_full_disk_costs_a_line(
    start: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start()
    engine.answer(1, PROMPT)
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        engine.stay()
        engine.answer(2, PROMPT[::-1])
        engine.stay(50)
    assert caplog.text.count("no prefix is stored for 60 s: [Errno 28] No space left on device") == 1
    assert "No space" in engine.figures.error
    engine.stay(70, 200)
    assert engine.figures.error == ""
    assert start().answer(1, PROMPT[::-1])[1] == 192


def test_the_files_stay_within_their_limit(start: MakeEngine, files: Callable[[], list[Path]]) -> None:
    one = start()
    one.answer(1, PROMPT)
    one.stay()
    limit = one.figures.num_bytes
    engine = start(max_bytes=limit)
    for key in range(1, 6):
        engine.answer(key, [key + 5, *PROMPT])
        engine.stay()
        assert sum(path.stat().st_size for path in files()) <= limit
    assert engine.figures.stored_tokens > 0


def test_halved_numbers_hardly_change_answers(start: MakeEngine) -> None:
    engine = start(stored_type=np.float16)
    before, _ = engine.answer(1, PROMPT)
    engine.stay()
    after, num_cached = start(stored_type=np.float16).answer(1, PROMPT)
    assert num_cached == 192
    # Activations are rounded to 8 bits, which turns the last bit of a key into as much as 0.06 (AVX2) of a logarithm.
    assert [one.logprob for one in after] == pytest.approx([one.logprob for one in before], abs=0.1)


def test_features_of_images_are_not_stored(start: MakeEngine) -> None:
    engine = start()
    engine.answer(1, PROMPT)
    slot = next(slot for slot in engine.batched.slots.slots if slot.tokens)
    slot.tokens = [*slot.tokens[:70], -1, *slot.tokens[71:]]
    engine.stay()
    assert engine.figures.stored_tokens == 64


@pytest.mark.parametrize("serial", [0, 2048, 2**40])
def test_tokens_before_an_image_are_loaded(start: MakeEngine, serial: int) -> None:
    """The features of each image that an engine has seen have ids of their own, which grow without limit."""
    stored(start)
    engine = start()
    image = EncodedImage(serial, np.zeros((30, 1), np.float32))
    sequence = open_bare(engine.batched, PROMPT, MAX_LENGTH)
    sequence.prompt = [*PROMPT[:150], *image.ids, *PROMPT[180:]]
    sequence.tokens = list(sequence.prompt)
    assert engine.disk.fetch(sequence, 0.0, lambda: None)
    assert engine.disk.take(sequence) == 128
    engine.batched.close(sequence.id)


def test_a_disk_slower_than_the_model_is_left_out(start: MakeEngine) -> None:
    stored(start)
    engine = start()
    read = engine.disk._folder.read

    def slow(*arguments: Any) -> Any:
        engine.clock.now += 1.0
        return read(*arguments)

    engine.disk._folder.read = slow  # type: ignore[assignment, method-assign]
    engine.answer(1, PROMPT)
    assert engine.figures.loaded_per_second == pytest.approx(SEGMENT)

    def num_cached(key: int) -> int:
        engine.batched.forget()
        for _ in range(20):
            engine.scheduler._step_times.passed(0, 1000, 0.1)
        return engine.answer(key, PROMPT)[1]

    assert num_cached(2) == 0
    assert engine.figures.left_out == 1
    # Once it is as fast as ever, that is found out.
    engine.disk._folder.read = read  # type: ignore[method-assign]
    for key in range(3, 10):
        assert (num_cached(key) > 0) == (key == 9)


def test_a_prefix_of_8_bits_is_loaded_with_its_scales(start: MakeEngine) -> None:
    graph = replace(read_decoder_graph(DEMO).in_32_bits(), cache_type=np.int8)
    engine = start(batched_runner(graph=graph, max_length=MAX_LENGTH), stored_type=np.int8)
    before, _ = engine.answer(1, PROMPT)
    engine.stay()
    engine.restart()
    assert engine.answer(2, PROMPT) == (before, 192)
    (copied, num_copied), (alone, _) = (engine.answer(key, [*PROMPT, 7], cache_prompt=key == 3) for key in (3, 4))
    assert num_copied >= 192
    assert copied == alone


def test_states_are_loaded_with_their_prefix(packed_hybrid: Hybrid, start: MakeEngine) -> None:
    batched = batched_runner(packed_hybrid.path, max_length=MAX_LENGTH)
    engine, longer = start(batched), [*PROMPT, *PROMPT[:30]]
    before, _ = engine.answer(1, PROMPT)
    engine.stay()
    expected, _ = start(batched).answer(1, longer, cache_prompt=False)
    for prompt, answer in ((PROMPT, before), (longer, expected)):
        found, num_cached = start(batched).answer(1, prompt)
        assert num_cached > 128
        assert found == answer


def load(folder: Path, **options: str) -> tuple[EngineSpec, BatchedRunner]:
    """A batch of the demo model that may keep prefixes in the folder."""
    settings = given(prefix_cache_bytes="1000000", prefix_cache_dir=str(folder), **options)
    spec = engine_spec(settings, "cpu", str(DEMO))
    return spec, load_batched(spec, DEMO, check_model_directory(DEMO))


@pytest.mark.parametrize(
    ("cache", "stored", "is_exact"), [("fp32", "fp16", False), ("fp16", "fp16", True), ("int8", "fp16", True)]
)
def test_exact_requests_are_refused_where_prefixes_are_rounded(
    tmp_path: Path, cache: str, stored: str, is_exact: bool
) -> None:
    _, runner = load(tmp_path, kv_cache_type=cache, prefix_cache_type=stored)
    with nullcontext() if is_exact else pytest.raises(InvalidField, match="GENAI_PREFIX_CACHE_TYPE"):
        runner.check(GenerationRequest("r", PROMPT, 8, MAX_LENGTH, exact=True))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the folders that caches are opened in."""
    found: list[str] = []

    def folder(root: Path, model: str, max_bytes: int) -> SegmentFolder:
        found.append(model)
        return SegmentFolder(root, model, max_bytes)

    monkeypatch.setattr(disk_cache, "SegmentFolder", folder)
    return found


@pytest.mark.parametrize("stored", ["same", "fp16"])
def test_prefixes_of_another_cache_type_are_not_loaded(tmp_path: Path, opened: list[str], stored: str) -> None:
    for kind in ("fp32", "fp16", "int8"):
        spec, runner = load(tmp_path, kv_cache_type=kind, prefix_cache_type=stored)
        assert open_disk_cache(spec, runner) is not None
        assert runner.abilities.why_not_exact == "" or (kind, stored) == ("fp32", "fp16")
    assert len(set(opened)) == 3


def test_prefixes_of_other_operators_are_not_loaded(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their keys and values differ in the last bits, so that answers would not be bitwise those without a cache."""
    spec, runner = load(tmp_path / "prefixes")
    for kernels in ("avx2", "avx512", "avx2"):
        monkeypatch.setattr(disk_cache, "library_key", lambda kernels=kernels: kernels)
        assert open_disk_cache(spec, runner) is not None
    one, other, again = opened
    assert one == again != other
