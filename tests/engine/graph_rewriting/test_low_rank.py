"""Paths of adapters in a graph, and several adapters in one pass over them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import GraphProto, TensorProto, helper

from genai_server.engine.decoder_graph import LowRankPath
from genai_server.engine.graph_rewriting.low_rank import RANKS, find_paths, stack_ranks

INPUTS, OUTPUTS = 8, 4
PATH = LowRankPath("a", "b", INPUTS, OUTPUTS)


def value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def empty(name: str, *shape: int, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor(name, kind, shape, [])


def path_graph() -> GraphProto:
    """y = x·a·b"""
    return helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])],
        "path",
        [value("x", 1, "tokens", INPUTS), value("a", INPUTS, "rank"), value("b", "rank", OUTPUTS)],
        [value("y", 1, "tokens", OUTPUTS)],
        [empty("a", INPUTS, 0), empty("b", 0, OUTPUTS)],
    )


def with_reader(graph: GraphProto) -> None:
    graph.node.append(helper.make_node("Identity", ["h"], ["z"]))


def with_fixed_rank(graph: GraphProto) -> None:
    graph.input[1].CopyFrom(value("a", INPUTS, 2))


def with_own_weights(graph: GraphProto) -> None:
    graph.initializer[0].CopyFrom(helper.make_tensor("a", TensorProto.FLOAT, [INPUTS, 1], [1.0] * INPUTS))


def with_half(graph: GraphProto) -> None:
    graph.input[1].CopyFrom(value("a", INPUTS, "rank", kind=TensorProto.FLOAT16))


def with_another(graph: GraphProto) -> None:
    graph.input.append(value("c", "any"))
    graph.initializer.append(empty("c", 0))


def with_shared_b(graph: GraphProto) -> None:
    graph.node.append(helper.make_node("MatMul", ["x", "b"], ["z"]))


def optional(graph: GraphProto) -> list[str]:
    return [tensor.name for tensor in graph.initializer]


def test_two_products_with_inputs_of_rank_0_are_a_path() -> None:
    graph = path_graph()
    assert find_paths(graph, optional(graph)) == (PATH,)
    assert find_paths(graph, ()) == ()


@pytest.mark.parametrize(
    "change", [with_reader, with_fixed_rank, with_own_weights, with_half, with_another, with_shared_b]
)
def test_graph_with_anything_else_has_no_paths(change: Callable[[GraphProto], None]) -> None:
    graph = path_graph()
    change(graph)
    assert find_paths(graph, optional(graph)) == ()


def run(graph: GraphProto, feed: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    found: NDArray[np.float32] = session.run(["y"], feed)[0]
    return found


def test_each_token_keeps_the_ranks_of_its_adapter() -> None:
    chance = np.random.default_rng(0)
    ranks = (1, 3, 2)
    adapters = [(chance.normal(size=(INPUTS, rank)), chance.normal(size=(rank, OUTPUTS))) for rank in ranks]
    x = chance.normal(size=(1, 5, INPUTS)).astype(np.float32)
    # Of each token; the third adapter has none.
    chosen = [0, 1, None, 1, 0]
    kept = np.zeros((1, 5, sum(ranks)), np.bool_)
    for token, number in enumerate(chosen):
        if number is not None:
            kept[0, token, sum(ranks[:number]) : sum(ranks[: number + 1])] = True
    graph = path_graph()
    stack_ranks(graph, [PATH])
    a = np.concatenate([a.T for a, _ in adapters]).astype(np.float32)
    b = np.concatenate([b for _, b in adapters]).astype(np.float32)
    found = run(graph, {"x": x, "a": a, "b": b, RANKS: kept})
    for token, number in enumerate(chosen):
        expected = 0 if number is None else x[0, token] @ adapters[number][0] @ adapters[number][1]
        np.testing.assert_allclose(found[0, token], np.broadcast_to(expected, OUTPUTS), rtol=1e-5, atol=1e-5)


def test_stacked_graph_without_adapters_adds_nothing() -> None:
    graph = path_graph()
    stack_ranks(graph, [PATH])
    found = run(graph, {"x": np.ones((1, 3, INPUTS), np.float32), RANKS: np.zeros((1, 3, 0), np.bool_)})
    assert (found == 0).all()


def test_graph_without_paths_stays_as_it_is() -> None:
    graph = path_graph()
    stack_ranks(graph, [])
    assert graph == path_graph()
