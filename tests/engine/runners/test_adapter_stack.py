"""Which ranks adapters have in a stack, and what lies there."""

import random
from typing import Any

import numpy as np
import pytest

from genai_server.engine.graph_description import LowRankPath
from genai_server.engine.runners.adapters import AdapterStack, AdapterWeights

PATHS = (LowRankPath("a0", "b0", 3, 5), LowRankPath("a1", "b1", 2, 4))


class Binding:
    """Keeps what is bound to it, by name."""

    def __init__(self) -> None:
        self.bound: dict[str, np.ndarray[Any, Any]] = {}

    def bind_input(self, name: str, device: str, number: int, kind: Any, shape: Any, address: int) -> None:
        import ctypes

        size = int(np.prod(shape))
        values = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (size,))
        self.bound[name] = values.reshape(shape).copy()


def weights(rank: int, seed: int = 0) -> AdapterWeights:
    chance = np.random.default_rng(seed)
    matrices = {}
    for path in PATHS:
        matrices[path.a] = chance.normal(size=(path.num_inputs, rank)).astype(np.float32)
        matrices[path.b] = chance.normal(size=(rank, path.num_outputs)).astype(np.float32)
    return AdapterWeights(matrices, rank)


def lies_in(stack: AdapterStack, sequence: int, adapter: AdapterWeights) -> bool:
    """Whether the ranks of a sequence have an adapter's weights. An adapter of rank 0 has none."""
    ranks = stack.ranks(sequence)
    if ranks is None:
        return adapter.rank == 0
    assert ranks[1] == adapter.rank
    binding = Binding()
    stack.bind(binding)
    own = slice(ranks[0], sum(ranks))
    return all(
        np.array_equal(binding.bound[path.a][own].T, adapter.matrices[path.a])
        and np.array_equal(binding.bound[path.b][own], adapter.matrices[path.b])
        for path in PATHS
    )


@pytest.fixture
def stack() -> AdapterStack:
    return AdapterStack(PATHS)


def test_adapter_stays_until_its_place_is_needed(stack: AdapterStack) -> None:
    adapter, other, third = (weights(2, seed=number) for number in range(3))
    stack.hold(1, adapter)
    stack.release(1)
    num_bytes = stack.num_bytes
    stack.hold(2, adapter)
    assert stack.ranks(2) == (0, 2)
    stack.release(2)
    stack.hold(3, other)
    assert stack.ranks(3) == (0, 2)
    assert stack.num_bytes == num_bytes
    stack.hold(4, third)
    assert lies_in(stack, 3, other)
    assert lies_in(stack, 4, third)


def test_bindings_of_another_version_are_known(stack: AdapterStack) -> None:
    adapters = [weights(2, seed=number) for number in range(3)]
    stack.hold(0, adapters[0])
    before = stack.version
    stack.hold(1, adapters[1])
    assert stack.version > before
    stack.release(1)
    grown = stack.version
    stack.hold(2, adapters[2])
    assert stack.version == grown


def test_adapters_are_moved_together_before_memory_grows(stack: AdapterStack) -> None:
    adapters = [weights(2, seed=number) for number in range(4)]
    for number, adapter in enumerate(adapters):
        stack.hold(number, adapter)
    version = stack.version
    stack.release(1)
    stack.release(3)
    assert [stack.ranks(number) for number in (0, 2)] == [(0, 2), (4, 2)]
    large = weights(4, seed=9)
    stack.hold(4, large)
    assert [stack.ranks(number) for number in (0, 2, 4)] == [(0, 2), (2, 2), (4, 4)]
    assert stack.version == version
    for number, adapter in ((0, adapters[0]), (2, adapters[2]), (4, large)):
        assert lies_in(stack, number, adapter)


def test_matrices_without_weights_are_zero(stack: AdapterStack) -> None:
    stack.hold(1, weights(3))
    stack.release(1)
    path = PATHS[0]
    part = AdapterWeights({path.a: np.ones((3, 1), np.float32), path.b: np.ones((1, 5), np.float32)}, 2)
    stack.hold(2, part)
    assert stack.ranks(2) == (0, 2)
    binding = Binding()
    stack.bind(binding)
    assert (binding.bound["a0"][:2] == [[1] * 3, [0] * 3]).all()
    assert not binding.bound["a1"][:2].any()
    assert not binding.bound["b1"][:2].any()


def weights_bytes(ranks: int) -> int:
    return ranks * 4 * sum(path.num_inputs + path.num_outputs for path in PATHS)


def test_any_order_of_sequences_keeps_weights_and_bounds_memory(stack: AdapterStack) -> None:
    chance = random.Random(3)
    adapters = [weights(chance.choice((0, 1, 2, 4, 8)), seed=number) for number in range(12)]
    running: dict[int, AdapterWeights] = {}
    most = 0
    for number in range(600):
        if running and (len(running) == 6 or chance.random() < 0.5):
            ended = chance.choice(list(running))
            stack.release(ended)
            del running[ended]
        else:
            running[number] = chance.choice(adapters)
            stack.hold(number, running[number])
        used = {id(adapter): adapter for adapter in running.values()}
        most = max(most, sum(adapter.rank for adapter in used.values()))
        places = {ranks: running[sequence] for sequence in running if (ranks := stack.ranks(sequence)) is not None}
        assert len(places) == sum(adapter.rank > 0 for adapter in used.values())
        ordered = sorted(places)
        assert all(one[0] + one[1] <= other[0] for one, other in zip(ordered, ordered[1:], strict=False))
        assert all(lies_in(stack, sequence, adapter) for sequence, adapter in running.items())
    assert stack.num_bytes <= 2 * weights_bytes(most)
