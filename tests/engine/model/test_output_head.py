"""The head of a graph computes the requested positions only, with unchanged results."""

from pathlib import Path
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
    FIRST_POSITION,
    NUM_BEST,
    narrow_head,
    offer_best,
)
from genai_server.engine.sampling.sampler import top_tokens
from tests.running_server import DEMO

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
@pytest.mark.parametrize("num_positions", [1, 2, POSITIONS])
def test_only_the_last_positions_are_computed(tail: tuple[onnx.NodeProto, ...], num_positions: int) -> None:
    whole = logits(graph_of(*tail))
    narrow = graph_of(*tail)
    assert narrow_head(narrow, "logits")
    found = logits(narrow, **{FIRST_POSITION: np.array([-num_positions])})
    assert found.shape == (1, num_positions, VOCABULARY)
    np.testing.assert_allclose(found, whole[:, -num_positions:], rtol=1e-6)


@pytest.mark.parametrize(
    "graph",
    [
        graph_of(helper.make_node("Sigmoid", ["states"], ["logits"])),
        graph_of(helper.make_node("MatMul", ["given", "weights"], ["logits"])),
        graph_of(*CAPPED, more_outputs=("product",)),
    ],
    ids=["no product", "a product of an input", "a product that others read"],
)
def test_other_graphs_stay_as_they_are(graph: onnx.GraphProto) -> None:
    before = graph.SerializeToString()
    assert not narrow_head(graph, "logits")
    assert graph.SerializeToString() == before


def test_the_demo_models_head_is_found() -> None:
    graph = onnx.load(str(Path(DEMO) / "model.onnx"), load_external_data=False).graph
    assert narrow_head(graph, "logits")
    assert [value.name for value in graph.input if value.name == FIRST_POSITION] == [FIRST_POSITION]


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
