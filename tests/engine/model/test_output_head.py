"""The head of a graph computes the requested positions only, with unchanged results."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from genai_server.engine.model.output_head import (
    BEST_LOGITS,
    BEST_TOKENS,
    NUM_BEST,
    find_head,
    offer_best,
)
from genai_server.engine.sampling.sampler import top_tokens

HIDDEN, VOCABULARY, POSITIONS = 4, 6, 5
STATES = np.arange(POSITIONS * HIDDEN, dtype=np.float32).reshape(1, POSITIONS, HIDDEN)


def graph_of(*tail: onnx.NodeProto, more_outputs: tuple[str, ...] = ()) -> onnx.GraphProto:
    """A graph whose states [rows, positions, hidden_size] are twice its input, followed by this tail up to `logits`."""
    floats: dict[str, NDArray[np.float32]] = {
        "two": np.full(1, 2, np.float32),
        "weights": np.linspace(-1, 1, HIDDEN * VOCABULARY, dtype=np.float32).reshape(HIDDEN, VOCABULARY),
        "cap": np.full(1, 30, np.float32),
    }
    return helper.make_graph(
        [helper.make_node("Mul", ["given", "two"], ["states"]), *tail],
        "decoder",
        [helper.make_tensor_value_info("given", TensorProto.FLOAT, ["rows", "positions", HIDDEN])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("logits", *more_outputs)],
        [onnx.numpy_helper.from_array(value, name) for name, value in floats.items()],
    )


PRODUCT = helper.make_node("MatMul", ["states", "weights"], ["logits"])
CAPPED = (
    helper.make_node("MatMul", ["states", "weights"], ["product"]),
    helper.make_node("Div", ["product", "cap"], ["scaled"]),
    helper.make_node("Tanh", ["scaled"], ["bent"]),
    helper.make_node("Mul", ["bent", "cap"], ["logits"]),
)


def logits(graph: onnx.GraphProto, **inputs: Any) -> NDArray[np.float32]:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], {"given": STATES, **inputs})
    return np.asarray(found)


@pytest.mark.parametrize("tail", [(PRODUCT,), CAPPED], ids=["product", "soft cap"])
@pytest.mark.parametrize("positions", [[1], [0, 3], list(range(POSITIONS))])
def test_only_selected_positions_are_computed(tail: tuple[onnx.NodeProto, ...], positions: list[int]) -> None:
    every = logits(graph_of(*tail))
    narrow = graph_of(*tail)
    head = find_head(narrow, "logits")
    assert head is not None
    narrow.initializer.append(onnx.numpy_helper.from_array(np.array(positions), "positions"))
    head.read_through(narrow, helper.make_node("Gather", [head.states, "positions"], ["selected"], axis=1))
    np.testing.assert_allclose(logits(narrow), every[:, positions], rtol=1e-6)


@pytest.mark.parametrize(
    "graph",
    [
        graph_of(helper.make_node("Sigmoid", ["states"], ["logits"])),
        graph_of(helper.make_node("MatMul", ["given", "weights"], ["logits"])),
        graph_of(*CAPPED, more_outputs=("product",)),
    ],
    ids=["no product", "a product of an input", "a product that others read"],
)
def test_other_graphs_have_no_head(graph: onnx.GraphProto) -> None:
    assert find_head(graph, "logits") is None


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_best_tokens_are_sorted_by_score_then_token(kind: Any) -> None:
    given = np.random.default_rng(3).integers(-50, 50, (2, 3, 500)).astype(kind)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["given"], ["logits"])],
        "decoder",
        [helper.make_tensor_value_info("given", element, ["rows", "positions", 500])],
        [helper.make_tensor_value_info("logits", element, None)],
    )
    offer_best(graph, "logits")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    whole, best, tokens = session.run(["logits", BEST_LOGITS, BEST_TOKENS], {"given": given})
    assert np.array_equal(whole, given)
    assert (best.dtype, tokens.dtype) == (np.float32, np.int64)
    for row, position in np.ndindex(2, 3):
        expected = top_tokens(given[row, position].astype(np.float32), NUM_BEST)
        assert np.array_equal(tokens[row, position], expected)
        assert np.array_equal(best[row, position], given[row, position][expected])
