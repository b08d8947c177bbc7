"""Paths of adapters in a graph, and several adapters in one pass over them."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import GraphProto, TensorProto, helper

from genai_server.engine.graph_description import LowRankPath
from genai_server.engine.graph_rewriting.lora import NUM_RANKS, RANKS, find_paths, stack_ranks
from genai_server.engine.graph_rewriting.native_attention import STARTS
from tests.engine.native.operator_session import session_of

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


def optional(graph: GraphProto) -> list[str]:
    return [tensor.name for tensor in graph.initializer]


def test_two_products_with_inputs_of_rank_0_are_a_path() -> None:
    graph = path_graph()
    assert find_paths(graph, optional(graph)) == (PATH,)
    assert find_paths(graph, ()) == ()


OWN_WEIGHTS = helper.make_tensor("a", TensorProto.FLOAT, [INPUTS, 1], [1.0] * INPUTS)


@pytest.mark.parametrize(
    ("where", "place", "given"),
    [
        pytest.param("node", None, helper.make_node("Identity", ["h"], ["z"]), id="another reader"),
        pytest.param("node", None, helper.make_node("MatMul", ["x", "b"], ["z"]), id="shared b"),
        pytest.param("input", 1, value("a", INPUTS, 2), id="a fixed rank"),
        pytest.param("input", 1, value("a", INPUTS, "rank", kind=TensorProto.FLOAT16), id="16 bits"),
        pytest.param("initializer", 0, OWN_WEIGHTS, id="own weights"),
        pytest.param("initializer", None, empty("c", 0), id="another input"),
    ],
)
def test_graph_with_anything_else_has_no_paths(where: str, place: int | None, given: Any) -> None:
    graph = path_graph()
    if where == "initializer" and place is None:
        graph.input.append(value("c", "any"))
    if place is None:
        getattr(graph, where).append(given)
    else:
        getattr(graph, where)[place].CopyFrom(given)
    assert find_paths(graph, optional(graph)) == ()


def run(feed: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """The results of a pass over the graph with stacked ranks."""
    graph = path_graph()
    stack_ranks(graph, [PATH])
    graph.input.append(value(STARTS, "bounds", kind=TensorProto.INT32))
    found: NDArray[np.float32] = session_of(graph).run(["y"], feed)[0]
    return found


def of_rows(*rows: tuple[int, int, int]) -> dict[str, NDArray[Any]]:
    """The inputs of a pass over rows: of each the number of its tokens, and the first and number of its ranks."""
    lengths, firsts, numbers = zip(*rows, strict=True)
    starts = np.cumsum([0, *lengths])
    inputs = {STARTS: starts, RANKS: np.array(firsts), NUM_RANKS: np.array(numbers)}
    return {name: array.astype(np.int32) for name, array in inputs.items()}


def test_each_row_has_the_ranks_of_its_adapter() -> None:
    chance = np.random.default_rng(0)
    ranks = (1, 3, 2)
    adapters = [(chance.normal(size=(INPUTS, rank)), chance.normal(size=(rank, OUTPUTS))) for rank in ranks]
    x = chance.normal(size=(1, 7, INPUTS)).astype(np.float32)
    chosen = [0, 1, 1, None, 2, 2, 0]  # of each token; the fourth has none
    rows = of_rows((1, 0, 1), (2, 1, 3), (1, 0, 0), (2, 4, 2), (1, 0, 1))
    a = np.concatenate([a.T for a, _ in adapters]).astype(np.float32)
    b = np.concatenate([b for _, b in adapters]).astype(np.float32)
    found = run({"x": x, "a": a, "b": b, **rows})
    for token, number in enumerate(chosen):
        expected = 0 if number is None else x[0, token] @ adapters[number][0] @ adapters[number][1]
        np.testing.assert_allclose(found[0, token], np.broadcast_to(expected, OUTPUTS), rtol=1e-5, atol=1e-5)


def test_values_of_other_adapters_reach_no_row() -> None:
    a, b = np.ones((3, INPUTS), np.float32), np.ones((3, OUTPUTS), np.float32)
    a[1:], b[1:] = np.inf, np.nan
    found = run({"x": np.ones((1, 3, INPUTS), np.float32), "a": a, "b": b, **of_rows((2, 0, 1), (1, 0, 0))})
    assert found[0, :, 0].tolist() == [INPUTS, INPUTS, 0]


def test_stacked_graph_without_adapters_adds_nothing() -> None:
    found = run({"x": np.ones((1, 3, INPUTS), np.float32), **of_rows((3, 0, 0))})
    assert (found == 0).all()


def test_graph_without_paths_stays_as_it_is() -> None:
    graph = path_graph()
    stack_ranks(graph, [])
    assert graph == path_graph()
