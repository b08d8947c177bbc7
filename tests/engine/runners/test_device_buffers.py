"""KV memory of a device, simulated: the same class on the CPU, bit for bit equal to the CPU's own.

The tests on CUDA are skipped if ONNX Runtime was built without it or no GPU is available.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from genai_server.engine.model.graph import DecoderGraph, read_decoder_graph
from genai_server.engine.model.output_head import NUM_BEST
from genai_server.engine.model.ragged import slot_length
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.buffers import BatchBuffers, MakeBuffers, buffers_on
from genai_server.engine.runners.cpu_buffers import CpuBuffers
from genai_server.engine.runners.device_buffers import DeviceBuffers, Place
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.runners.scores import Logits
from genai_server.engine.sampling.continuation import choose_next_token
from genai_server.engine.sampling.sampler import top_tokens
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import Sequence as EngineSequence
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import GenerationRequest, Sampling
from genai_server.options.check import check_device, on_providers
from genai_server.options.device import DEFAULT_OPTIONS
from scripts._models.driven import Driven
from tests.engine.model_runners import batched_runner
from tests.running_server import DEMO

ON_CPU = Place("cpu", 0, "CPUExecutionProvider")
ROWS, LENGTH = 3, 16


def has_cuda() -> bool:
    try:
        onnxruntime.OrtValue.ortvalue_from_shape_and_type([1], np.float32, "cuda", 0)
    except Exception:  # ONNX Runtime's exceptions have no common base
        return False
    return True


on_cuda = pytest.mark.skipif(not has_cuda(), reason="no memory of a CUDA device can be had: nothing on CUDA is checked")


@pytest.fixture(scope="module")
def graph() -> DecoderGraph:
    return read_decoder_graph(DEMO)


def keys(graph: DecoderGraph, length: int, seed: int) -> NDArray[Any]:
    shape = (1, graph.num_kv_heads, length, graph.head_size)
    return np.random.default_rng(seed).random(shape).astype(graph.cache_type)


class Bound:
    """A substitute for an IO binding that records its arguments."""

    def __init__(self) -> None:
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.outputs: dict[str, tuple[Any, ...]] = {}

    def bind_input(self, name: str, *what: Any) -> None:
        self.inputs[name] = what

    def bind_output(self, name: str, *what: Any) -> None:
        self.outputs[name] = what


def contents(buffers: BatchBuffers, graph: DecoderGraph, rows: int = ROWS) -> list[NDArray[Any]]:
    """Copies of all arrays [rows, …], read where a binding would find them in the CPU's memory."""
    import ctypes

    bound = Bound()
    buffers.bind(bound, 0, rows)
    assert list(bound.inputs) == list(graph.past_names)
    assert list(bound.outputs) == list(graph.present_names)
    assert list(bound.inputs.values()) == list(bound.outputs.values())
    found = []
    for device, number, kind, shape, address in bound.inputs.values():
        assert (device, number) == ("cpu", 0)
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        found.append(np.frombuffer(ctypes.string_at(address, size), kind).reshape(shape))
    return found


def act(buffers: BatchBuffers, graph: DecoderGraph) -> None:
    """A sample of the calls of slots and runner."""
    for number, name in enumerate(graph.present_names):
        for row in range(ROWS):
            buffers.write(row, name, keys(graph, 9, number * ROWS + row))
    buffers.copy(2, 1, 9)
    buffers.copy(0, 2, 0)  # copies nothing


def test_device_buffers_equal_the_cpus_bit_for_bit(graph: DecoderGraph) -> None:
    found = []
    for buffers in (CpuBuffers(graph, ROWS, LENGTH), DeviceBuffers(ON_CPU, graph, ROWS, LENGTH)):
        assert not any(array.any() for array in contents(buffers, graph))
        act(buffers, graph)
        found.append(contents(buffers, graph))
    for expected, given in zip(*found, strict=True):
        assert given.shape == (ROWS, graph.num_kv_heads, slot_length(LENGTH), graph.head_size)
        assert np.array_equal(expected[:, :, : slot_length(LENGTH)], given)  # the CPU's rows end with complete pages
        assert not np.array_equal(given[0], given[1])


def test_a_binding_gets_the_rows_that_it_asks_for(graph: DecoderGraph) -> None:
    buffers = DeviceBuffers(ON_CPU, graph, ROWS, LENGTH)
    whole, part = Bound(), Bound()
    buffers.bind(whole, 0, ROWS)
    buffers.bind(part, 2, 1)
    name = graph.past_names[0]
    row = graph.num_kv_heads * slot_length(LENGTH) * graph.head_size * np.dtype(graph.cache_type).itemsize
    assert part.inputs[name][4] - whole.inputs[name][4] == 2 * row
    assert part.inputs[name][3] == (1, graph.num_kv_heads, slot_length(LENGTH), graph.head_size)


def answers(session: Any, make: MakeBuffers) -> tuple[list[list[int]], NDArray[Any]]:
    """Tokens of sequences that come, go and reuse each other's past, and the final logits."""
    runner = Driven(batched_runner(session=session, max_length=128, make_buffers=make))
    chance = np.random.default_rng(7)
    prompts = [[int(token) for token in chance.integers(10, 1900, length)] for length in (40, 7, 25, 3, 60)]
    prompts.append([*prompts[0], 11, 12, 13])
    found: list[list[int]] = []

    def begin(number: int) -> int:
        cached = runner.open(number, prompts[number], 128)
        found.append([int(runner.prefill(number, prompts[number][cached:]).argmax())])
        return cached

    def step(*numbers: int) -> NDArray[Any]:
        logits = runner.decode(numbers, [found[number][-1] for number in numbers])
        for number, row in zip(numbers, logits, strict=True):
            found[number].append(int(row.argmax()))
        return logits.copy()

    for number in range(4):
        begin(number)
    for _ in range(5):
        step(0, 1, 2, 3)
    runner.close(1)
    begin(4)
    for _ in range(3):
        step(0, 2, 3, 4)
    runner.close(3)
    assert begin(5) == len(prompts[0])  # its beginning is copied from a slot in use
    runner.close(0)
    return found, np.concatenate([step(2, 4, 5) for _ in range(4)])


def test_batch_on_device_buffers_equals_the_cpus_bit_for_bit(session: Any) -> None:
    expected, expected_logits = answers(session, CpuBuffers)
    found, logits = answers(session, partial(DeviceBuffers, ON_CPU))
    assert found == expected
    assert np.array_equal(logits, expected_logits)


# the best tokens


@pytest.fixture(scope="module")
def offering(graph: DecoderGraph) -> Any:
    return open_session(graph, 1, optimized=False, offers_best=True)


def on_a_device(session: Any) -> Driven:
    """A device without hardware: the memory is the CPU's."""
    return Driven(batched_runner(session=session, max_length=128, make_buffers=partial(DeviceBuffers, ON_CPU)))


def all_logits(runner: Driven, numbers: list[int], tokens: list[int]) -> Logits:
    """The logits of a pass whose sequences need all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genai_server.engine.runners.batched.num_choices", lambda _: 0)
        return runner.decode(numbers, tokens)


def test_the_best_are_those_of_all_in_any_order_of_passes(session: Any, offering: Any) -> None:
    plain, runner = on_a_device(session), on_a_device(offering)
    tokens = [5, 6, 7]
    for number in range(3):
        for one in (plain, runner):
            one.open(number, [10 + number, 20], 128, top_logprobs=None)
            one.prefill(number, [10 + number, 20])
    for step in range(9):
        numbers = [0, 1, 2] if step % 2 else [0, 2]
        reading = [tokens[number] for number in numbers]
        whole = plain.decode(numbers, reading)
        if step % 3 == 1:
            assert np.array_equal(all_logits(runner, numbers, reading), whole)
        else:
            for scores, row in zip(runner.advance(numbers, reading), whole, strict=True):
                assert scores.tokens is not None
                assert np.array_equal(scores.tokens, top_tokens(row, NUM_BEST))
                assert np.array_equal(scores.last, row[scores.tokens])
        for number, row in zip(numbers, whole, strict=True):
            tokens[number] = int(row.argmax())


GREEDY = Sampling()
WANTED: list[dict[str, Any]] = [
    {"sampling": GREEDY},
    {"sampling": Sampling(0.9, top_k=20, top_p=0.9, seed=1)},
    {"sampling": Sampling(1.3, top_k=NUM_BEST, min_p=0.01, seed=2)},
    {"sampling": Sampling(1.0, seed=3)},
    {"sampling": Sampling(0.8, top_k=NUM_BEST + 1, seed=4)},
    {"sampling": Sampling(0.0, frequency_penalty=1.0)},
    {"sampling": Sampling(0.0, logit_bias={40: 3.0})},
    {"sampling": GREEDY, "top_logprobs": 2},
    {"sampling": GREEDY, "min_tokens": 5},
]


@cache
def generators() -> OgGeneratorRunner:
    """The generator is shared, because loading the library's model takes longer than answering."""
    return OgGeneratorRunner(DEMO, "cpu", 1)


def sample(session: Any, wanted: list[dict[str, Any]]) -> tuple[list[list[int]], int]:
    """The answers to one prompt with each of these parameters, run concurrently, and the number of passes in which only
    the best tokens left the device.
    """
    runner, generator = on_a_device(session), generators()
    num_best_only = 0
    pair = RunnerPair(generator, runner.runner)
    scheduler = Scheduler(runner.runner, max_running=4, max_waiting=9, prefill_chunk=32)
    running = [
        EngineSequence(number, (0, number), GenerationRequest("r", [11, 12, 13], 12, 128, **how), lambda: 0.0)
        for number, how in enumerate(wanted)
    ]
    for sequence in running:
        scheduler.add(sequence)
    for sequence in scheduler.admit():
        sequence.reuses_past = pair.reuses_past(sequence.request)
        pair.open(sequence)
    while running[0].num_left and (step := scheduler.next_step()) is not None:
        found = pair.forward(step)
        num_best_only += all(scores.tokens is not None for scores in found)
        for sequence, scores in zip(step.sequences, found, strict=True):
            if sequence.num_unread == 0:
                choose_next_token(sequence, scores, ())
    for sequence in running:
        pair.close(sequence)
    return [sequence.tokens for sequence in running], num_best_only


@pytest.mark.parametrize("how", WANTED, ids=str)
def test_token_chosen_from_the_best_equals_one_from_all(session: Any, offering: Any, how: dict[str, Any]) -> None:
    (expected, never), (found, best_only) = (sample(one, [how]) for one in (session, offering))
    assert found == expected
    assert never == 0
    assert best_only == (12 if WANTED.index(how) < 3 else 7 if "min_tokens" in how else 0)


def test_one_row_that_needs_all_logits_gets_them_for_the_pass(session: Any, offering: Any) -> None:
    both = [WANTED[1], WANTED[3]]
    expected, _ = sample(session, both)
    assert sample(offering, both) == (expected, 0)
    assert sample(offering, WANTED[:2])[1] > 1


# what ONNX Runtime provides


def test_memory_of_a_device_is_allocated_once_after_the_trial(session: Any) -> None:
    made: list[tuple[int, int]] = []

    def make(graph: DecoderGraph, num_rows: int, max_length: int) -> BatchBuffers:
        made.append((num_rows, max_length))
        return DeviceBuffers(ON_CPU, graph, num_rows, max_length)

    batched_runner(session=session, max_length=128, make_buffers=make)
    assert made[1:] == [(4, 128)]


def test_failed_device_copy_is_a_runner_failure(graph: DecoderGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("no memory")

    buffers = DeviceBuffers(ON_CPU, graph, ROWS, LENGTH)
    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", refuse)
    with pytest.raises(RunnerFailed, match="no memory"):
        buffers.copy(0, 1, 4)


def test_a_device_that_onnx_runtime_lacks_is_named(graph: DecoderGraph) -> None:
    if has_cuda():
        pytest.skip("there is a CUDA device")
    with pytest.raises(RuntimeError, match="(?i)cuda"):
        DeviceBuffers(Place("cuda", 0, "CUDAExecutionProvider"), graph, ROWS, LENGTH)


@pytest.mark.parametrize(
    ("device", "sections", "number"),
    [
        ("cuda", {}, 0),
        ("cuda:1", {}, 1),
        ("cuda", {"provider": {"cuda": {"device_id": 2}}}, 2),
        ("tensorrt:3", {}, 3),
    ],
)
def test_buffers_are_on_the_providers_device_number(device: str, sections: dict[str, Any], number: int) -> None:
    made = buffers_on(device, check_device(sections, device))
    assert isinstance(made, partial)
    assert (made.func, made.args) == (DeviceBuffers, (Place("cuda", number, "CUDAExecutionProvider"),))


def test_the_cpus_buffers_are_its_own() -> None:
    assert buffers_on("cpu", DEFAULT_OPTIONS) is CpuBuffers
    assert buffers_on("cpu:1", DEFAULT_OPTIONS) is CpuBuffers


@on_cuda
def test_the_best_on_cuda_are_those_of_all(graph: DecoderGraph) -> None:
    options = on_providers(DEFAULT_OPTIONS, "cuda")
    session = open_session(graph, 1, optimized=False, offers_best=True, options=options)
    make = buffers_on("cuda", options)
    runner = Driven(batched_runner(session=session, max_length=128, make_buffers=make))
    found: list[list[int]] = []
    for best in (True, False):
        runner.open(2, [10, 11, 12], 128, reuse=False, top_logprobs=None if best else 0)
        runner.prefill(2, [10, 11])
        if best:
            (scores,) = runner.advance([2], [12])
            assert scores.tokens is not None
            found.append(scores.tokens.tolist())
        else:
            found.append(top_tokens(runner.decode([2], [12])[0], NUM_BEST).tolist())
        runner.close(2)
    assert found[0] == found[1]


@on_cuda
def test_batch_on_cuda_answers_as_on_the_cpu(graph: DecoderGraph) -> None:
    options = on_providers(DEFAULT_OPTIONS, "cuda")
    session = open_session(graph, 1, optimized=False, options=options)
    makers: list[Callable[..., Any]] = [CpuBuffers, buffers_on("cuda", options)]
    (expected, _), (found, _) = (answers(session, make) for make in makers)
    assert found == expected
