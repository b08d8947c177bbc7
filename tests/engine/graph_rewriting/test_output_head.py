"""The head of a graph computes the requested positions only, with unchanged results."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from genai_server.engine.graph_rewriting.ragged import (
    BEST_LOGITS,
    BEST_TOKENS,
    SCALES,
    SHARES,
    find_head,
    offer_best,
)
from genai_server.engine.sampling.sampler import top_tokens
from genai_server.engine.scores import NUM_BEST, SHARE_ERROR

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


def run(graph: onnx.GraphProto, outputs: list[str], **inputs: Any) -> list[NDArray[Any]]:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(outputs, inputs))


def logits(graph: onnx.GraphProto) -> NDArray[Any]:
    return run(graph, ["logits"], given=STATES)[0]


@pytest.mark.parametrize("tail", [(PRODUCT,), CAPPED], ids=["product", "soft cap"])
@pytest.mark.parametrize("positions", [[1], [0, 3], list(range(POSITIONS))])
def test_only_selected_positions_are_computed(tail: tuple[onnx.NodeProto, ...], positions: list[int]) -> None:
    every = logits(graph_of(*tail))
    narrow = graph_of(*tail)
    head = find_head(narrow, "logits")
    assert head is not None
    narrow.initializer.append(onnx.numpy_helper.from_array(np.array(positions), "positions"))
    head.insert_selection(narrow, helper.make_node("Gather", [head.states, "positions"], ["selected"], axis=1))
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


def offered(given: NDArray[Any], scales: list[float], excluded: int | None = None) -> list[NDArray[Any]]:
    """The logits, the best of them with their tokens, and their shares, of a graph that gets the logits."""
    element = helper.np_dtype_to_tensor_dtype(given.dtype)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["given"], ["logits"])],
        "decoder",
        [helper.make_tensor_value_info("given", element, ["rows", "positions", "vocab_size"])],
        [helper.make_tensor_value_info("logits", element, None)],
    )
    offer_best(graph, "logits", excluded)
    inputs = {"given": given, SCALES: np.array(scales, np.float32)[:, np.newaxis]}
    return run(graph, ["logits", BEST_LOGITS, BEST_TOKENS, SHARES], **inputs)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_best_tokens_are_sorted_by_score_then_token(kind: Any) -> None:
    given = np.random.default_rng(3).integers(-50, 50, (2, 3, 500)).astype(kind)
    whole, best, tokens, _ = offered(given, [1, 1, 1])
    assert np.array_equal(whole, given)
    assert [best.dtype.name, tokens.dtype.name] == ["float32", "int64"]
    for row, position in np.ndindex(2, 3):
        expected = top_tokens(given[row, position].astype(np.float32), NUM_BEST)
        assert np.array_equal(tokens[row, position], expected)
        assert np.array_equal(best[row, position], given[row, position][expected])


def test_shares_of_the_best_are_those_at_each_positions_scale() -> None:
    given = np.random.default_rng(3).normal(0, 4, (1, 5, 150_000)).astype(np.float32)
    given[0, 3] = 80  # its exponentials would overflow without the subtraction
    given[0, 4, :2] = [30.0, 29.99]
    scales = [1.0, 0.5, 1e30, 2.0, 100.0]
    _, _, _, shares = offered(given, scales)
    below = given[0].astype(np.float64) - given[0].max(axis=-1, keepdims=True)
    expected = 1 / np.exp(below * np.array(scales)[:, np.newaxis]).sum(axis=-1)
    assert (shares.shape, shares.dtype.name) == ((1, 5, 1), "float32")
    assert expected[2:4].tolist() == [1, 1 / 150_000]
    np.testing.assert_allclose(shares[0, :, 0], expected, rtol=SHARE_ERROR / 10)


def test_share_of_a_flat_large_vocabulary_is_precise() -> None:
    """Sums in 32 bits lose most if all terms are alike and not exact."""
    given = np.full((1, 2, 250_000), 0.1, np.float32)
    given[0, :, 7] = [3.7, 0.3]
    _, _, _, shares = offered(given, [1.0, 1.0])
    expected = 1 / (1 + 249_999 * np.exp(given[0, :, 0].astype(np.float64) - given[0, :, 7]))
    np.testing.assert_allclose(shares[0, :, 0], expected, rtol=SHARE_ERROR)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_excluded_token_is_none_of_the_best(kind: Any) -> None:
    given = np.random.default_rng(3).normal(0, 4, (1, 3, 500)).astype(kind)
    given[:, :, 7] = 60
    whole, best, tokens, shares = offered(given, [1, 1, 1], excluded=7)
    assert np.array_equal(whole, given)
    given[:, :, 7] = -np.inf
    for found, expected in zip((best, tokens, shares), offered(given, [1, 1, 1])[1:], strict=True):
        assert np.array_equal(found, expected)
