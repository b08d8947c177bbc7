"""Keys and values in a device's memory, up to its border: the same class on the CPU, bit for bit as the CPU's own.

The tests on CUDA are skipped where ONNX Runtime was built without it or no card answers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from genai_server.engine.decoder_graph import DecoderGraph, read_decoder_graph
from genai_server.engine.decoder_session import open_session
from genai_server.engine.model_files import check_model_directory
from genai_server.engine.runners.base import Opening
from genai_server.engine.runners.batched import BatchedRunner, BatchLimits
from genai_server.engine.runners.buffers import BatchBuffers, MakeBuffers, buffers_on
from genai_server.engine.runners.cpu_buffers import CpuBuffers
from genai_server.engine.runners.device_buffers import DeviceBuffers, Place
from genai_server.options.check import check_device, on_providers
from genai_server.options.device import DEFAULT_OPTIONS
from tests.running_server import DEMO

ON_CPU = Place("cpu", 0, "CPUExecutionProvider")
ROWS, LENGTH = 3, 16


def has_cuda() -> bool:
    try:
        onnxruntime.OrtValue.ortvalue_from_shape_and_type([1], np.float32, "cuda", 0)
    except Exception:  # ONNX Runtime's errors have no base of their own
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
    """Stands for a binding, and reads what it is told of."""

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
    """Some of all that slots and runner ask for."""
    for number, name in enumerate(graph.present_names):
        for row in range(ROWS):
            buffers.write(row, name, keys(graph, 9, number * ROWS + row))
    buffers.swap(0, 2, 9)
    buffers.copy(2, 1, 9)
    buffers.copy(0, 2, 0)  # nothing


def test_they_hold_bit_for_bit_what_the_cpus_do(graph: DecoderGraph) -> None:
    found = []
    for buffers in (CpuBuffers(graph, ROWS, LENGTH), DeviceBuffers(ON_CPU, graph, ROWS, LENGTH)):
        assert not any(array.any() for array in contents(buffers, graph))
        act(buffers, graph)
        found.append(contents(buffers, graph))
    for expected, given in zip(*found, strict=True):
        assert given.shape == (ROWS, graph.num_kv_heads, LENGTH + 1, graph.head_size)
        assert np.array_equal(expected, given)
        assert not np.array_equal(given[0], given[1])


def test_a_binding_gets_the_rows_that_it_asks_for(graph: DecoderGraph) -> None:
    buffers = DeviceBuffers(ON_CPU, graph, ROWS, LENGTH)
    whole, part = Bound(), Bound()
    buffers.bind(whole, 0, ROWS)
    buffers.bind(part, 2, 1)
    name = graph.past_names[0]
    row = graph.num_kv_heads * (LENGTH + 1) * graph.head_size * np.dtype(graph.cache_type).itemsize
    assert part.inputs[name][4] - whole.inputs[name][4] == 2 * row
    assert part.inputs[name][3] == (1, graph.num_kv_heads, LENGTH + 1, graph.head_size)


def answers(graph: DecoderGraph, session: Any, make: MakeBuffers) -> tuple[list[list[int]], NDArray[Any]]:
    """Tokens of sequences that come, go and use each other's past, and the last logits."""
    runner = BatchedRunner(graph, session, check_model_directory(DEMO), BatchLimits(4, 128), make_buffers=make)
    chance = np.random.default_rng(7)
    prompts = [[int(token) for token in chance.integers(10, 1900, length)] for length in (40, 7, 25, 3, 60)]
    prompts.append([*prompts[0], 11, 12, 13])
    found: list[list[int]] = []

    def begin(number: int) -> int:
        cached = runner.open(number, prompts[number], Opening(128))
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
    assert begin(5) == len(prompts[0])  # its beginning is copied from a slot that is in use
    runner.close(0)
    return found, np.concatenate([step(2, 4, 5) for _ in range(4)])


@pytest.fixture(scope="module")
def session(graph: DecoderGraph) -> Any:
    return open_session(graph, 0, optimized=False)


def test_a_batch_on_them_answers_bit_for_bit_as_on_the_cpus(graph: DecoderGraph, session: Any) -> None:
    expected, expected_logits = answers(graph, session, CpuBuffers)
    found, logits = answers(graph, session, partial(DeviceBuffers, ON_CPU))
    assert found == expected
    assert np.array_equal(logits, expected_logits)


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
def test_the_buffers_lie_on_the_number_of_the_devices_provider(
    device: str, sections: dict[str, Any], number: int
) -> None:
    made = buffers_on(device, check_device(sections, device))
    assert isinstance(made, partial)
    assert (made.func, made.args) == (DeviceBuffers, (Place("cuda", number, "CUDAExecutionProvider"),))


def test_the_cpus_buffers_are_its_own() -> None:
    assert buffers_on("cpu", DEFAULT_OPTIONS) is CpuBuffers
    assert buffers_on("cpu:1", DEFAULT_OPTIONS) is CpuBuffers


@on_cuda
def test_a_batch_on_cuda_answers_as_one_whose_buffers_are_the_cpus(graph: DecoderGraph) -> None:
    options = on_providers(DEFAULT_OPTIONS, "cuda")
    session = open_session(graph, 0, optimized=False, options=options)
    makers: list[Callable[..., Any]] = [CpuBuffers, buffers_on("cuda", options)]
    (expected, _), (found, _) = (answers(graph, session, make) for make in makers)
    assert found == expected
