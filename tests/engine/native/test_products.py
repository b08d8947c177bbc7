"""Packed products and experts, in place of ONNX Runtime's: as exact, and each row bitwise the same in any pass."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_rewriting.packed_products import pack_products, why_not_packed
from tests.engine.native.operator_session import OPSETS, session_of, value

CONTRIB = "com.microsoft"
pytestmark = pytest.mark.usefixtures("instruction_set")
ROWS = (1, 2, 5, 7, 8, 15, 63)
Feed = dict[str, NDArray[np.float32]]


def randoms(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def graph(nodes: Sequence[onnx.NodeProto], tensors: Mapping[str, NDArray[Any]], *inputs: str) -> onnx.ModelProto:
    constants = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    made = helper.make_graph(nodes, "tested", [value(name) for name in inputs], [value("y")], constants)
    return helper.make_model(made, ir_version=10, opset_imports=OPSETS)


def packed(model: onnx.ModelProto) -> onnx.ModelProto:
    assert why_not_packed(model.graph) is None
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    pack_products(copy, Path())
    return copy


def check(model: onnx.ModelProto, feed: Feed, expected: NDArray[np.float64], *, library: bool = True) -> float:
    """Check that an error is not above ONNX Runtime's, and that rows are bitwise the same in any pass.

    Returns the mean error as a share of the results' standard deviation.
    """
    ours = packed(model)
    assert why_not_packed(ours.graph) is None
    runs = [session_of(ours.graph, threads) for threads in (2, 1)]
    (found,) = runs[0].run(None, feed)
    error = float(np.abs(found - expected).mean() / expected.std())
    if library:
        (others,) = session_of(model.graph).run(None, feed)
        assert error <= 1.1 * np.abs(others - expected).mean() / expected.std() + 1e-7  # a float's own rounding
    for rows in ROWS:
        part = {name: array[len(array) - rows :] for name, array in feed.items()}
        for run in runs:
            assert np.array_equal(run.run(None, part)[0], found[len(found) - rows :]), rows
    return error


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(256, 192), (96, 100), (1000, 130), (129, 64), (7, 3)])
def test_a_product_of_floats(kind: Any, num_inputs: int, num_outputs: int) -> None:
    weights, x = randoms(1, num_inputs, num_outputs).astype(kind), randoms(2, 64, num_inputs)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if kind is not np.float32:
        widen = helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT)
        nodes = [widen, helper.make_node("MatMul", ["x", "wide"], ["y"])]
    model = graph(nodes, {"w": weights}, "x")
    assert check(model, {"x": x}, x.astype(np.float64) @ weights.astype(np.float64)) < 1e-6
    kept = {tensor.data_type for tensor in packed(model).graph.initializer}
    assert kept == {helper.np_dtype_to_tensor_dtype(np.dtype(kind))}


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_gemm_with_a_bias(is_turned: bool) -> None:
    weights, bias, x = randoms(1, 96, 100), randoms(2, 100), randoms(3, 64, 96)
    tensors = {"w": np.ascontiguousarray(weights.T) if is_turned else weights, "b": bias}
    model = graph([helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=int(is_turned))], tensors, "x")
    assert check(model, {"x": x}, x.astype(np.float64) @ weights + bias) < 1e-6


def test_a_gate_and_values_of_floats_are_one_operator() -> None:
    gate, values, x = randoms(1, 96, 128), randoms(2, 96, 128), randoms(3, 64, 96)
    nodes = [
        helper.make_node("MatMul", ["x", "gate"], ["g"]),
        helper.make_node("MatMul", ["x", "values"], ["v"]),
        helper.make_node("Sigmoid", ["g"], ["s"]),
        helper.make_node("Mul", ["g", "s"], ["a"]),
        helper.make_node("Mul", ["a", "v"], ["y"]),
    ]
    model = graph(nodes, {"gate": gate, "values": values}, "x")
    gates = x.astype(np.float64) @ gate
    assert check(model, {"x": x}, gates / (1 + np.exp(-gates)) * (x.astype(np.float64) @ values)) < 1e-6
    assert [node.op_type for node in packed(model).graph.node] == ["PackedMatMul"]


def test_an_embedding_that_is_also_the_head_is_kept_for_lookups() -> None:
    """It is turned once, when it is packed, and not in each process that loads the model."""
    weights = randoms(1, 64, 200)
    nodes = [
        helper.make_node("Cast", ["places"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Transpose", ["head"], ["embedding"], perm=[1, 0]),
        helper.make_node("Gather", ["embedding", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "head"], ["y"]),
    ]
    ours = packed(graph(nodes, {"head": weights}, "places"))
    assert [node.op_type for node in ours.graph.node] == ["Cast", "Gather", "PackedMatMul"]
    (found,) = session_of(ours.graph).run(None, {"places": np.arange(9, dtype=np.float32)})
    assert np.abs(found - weights[:, :9].T @ weights).max() < 1e-4


def quantized(
    bits: int, num_outputs: int, num_inputs: int, block: int, *, zeros: bool, seed: int = 1
) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64]]:
    """The tensors of a matrix as MatMulNBits has them, and its values."""
    rng, per_byte, blocks = np.random.default_rng(seed), 8 // bits, -(-num_inputs // block)
    rows = rng.integers(0, 1 << bits, (num_outputs, blocks * block), np.uint8)
    scales = ((rng.random((num_outputs, blocks)) + 0.5) / (1 << bits)).astype(np.float32)
    points = np.full((num_outputs, -(-blocks // per_byte) * per_byte), 1 << (bits - 1), np.uint8)
    if zeros:
        points = rng.integers(0, 1 << bits, points.shape, np.uint8)

    def in_bytes(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        shifted = [values[:, place::per_byte] << bits * place for place in range(per_byte)]
        found: NDArray[np.uint8] = np.bitwise_or.reduce(shifted)
        return found

    tensors: dict[str, NDArray[Any]] = {"w": in_bytes(rows).reshape(num_outputs, blocks, -1), "s": scales}
    if zeros:
        tensors["z"] = in_bytes(points)
    dense = (rows.astype(np.float64) - np.repeat(points[:, :blocks], block, 1)) * np.repeat(scales, block, 1)
    return tensors, dense[:, :num_inputs]


def _nbits(
    tensors: Mapping[str, NDArray[Any]], inputs: Sequence[str] | None = None, **attributes: Any
) -> onnx.ModelProto:
    node = helper.make_node("MatMulNBits", inputs or ["x", *tensors], ["y"], domain=CONTRIB, **attributes)
    return graph([node], tensors, "x")


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "level"), [(2, 0), (4, 0), (8, 1), (4, 4), (8, 4)])
@pytest.mark.parametrize(("num_outputs", "num_inputs", "block"), [(192, 256, 32), (100, 1000, 128)])
def test_a_product_with_quantized_weights_of_any_accuracy_level(
    bits: int, level: int, num_outputs: int, num_inputs: int, block: int, zeros: bool
) -> None:
    tensors, dense = quantized(bits, num_outputs, num_inputs, block, zeros=zeros)
    model = _nbits(tensors, K=num_inputs, N=num_outputs, bits=bits, block_size=block, accuracy_level=level)
    x = randoms(2, 64, num_inputs)
    assert check(model, {"x": x}, x.astype(np.float64) @ dense.T) < (0.02 if level == 4 else 1e-6)


@pytest.mark.parametrize("is_even", [True, False])
def test_weights_in_an_order_of_their_own(is_even: bool) -> None:
    tensors, dense = quantized(4, 100, 256, 32, zeros=False)
    groups = np.random.default_rng(1).permutation(np.arange(256) // 32).astype(np.int32)
    if not is_even:
        groups[0] = (groups[0] + 1) % 8
    given, inputs = tensors | {"groups": groups}, ["x", "w", "s", "", "groups"]
    model = _nbits(given, inputs, K=256, N=100, bits=4, block_size=32, accuracy_level=4)
    if is_even:
        x, signed = randoms(2, 64, 256), dense / np.repeat(tensors["s"], 32, 1)
        assert check(model, {"x": x}, x.astype(np.float64) @ (signed * tensors["s"][:, groups]).T) < 1e-6
    else:
        with pytest.raises(Exception, match="differ in size"):
            packed(model)


def experts(
    activation: str,
    bits: int = 32,
    block: int = 32,
    *,
    zeros: bool = False,
    fusion: int = 1,
    has_weights: bool = False,
    **attributes: Any,
) -> tuple[onnx.ModelProto, Any]:
    """A MoE or QMoE, and the weights and biases of its two layers."""
    number, size, inner = 5, 128, 96
    wide = 2 * inner if activation == "swiglu" and fusion else inner
    shapes = [(wide, size), (size, inner)] + ([(inner, size)] if activation == "swiglu" and not fusion else [])
    tensors: dict[str, NDArray[Any]] = {}
    dense, biases = [], []
    for layer, (num_outputs, num_inputs) in enumerate(shapes):
        biases.append(randoms(layer, number, num_outputs))
        tensors[f"b{layer}"] = biases[-1]
        if bits == 32:
            dense.append(randoms(layer + 9, number, num_outputs, num_inputs) / np.float32(num_inputs**0.5))
            tensors[f"w{layer}"] = dense[-1]
            continue
        parts = [
            quantized(bits, num_outputs, num_inputs, block or num_inputs, zeros=zeros, seed=n) for n in range(number)
        ]
        dense.append(np.stack([values for _, values in parts]) / 4)
        for name in parts[0][0]:
            array = np.stack([part[name] for part, _ in parts])
            array = array.reshape(number, num_outputs, -1) if name != "s" else array / np.float32(4)
            tensors[f"{name}{layer}"] = array if block or name == "w" else array[..., 0]
    values = [
        name
        for layer in range(len(shapes))
        for name in ([f"w{layer}", f"b{layer}"] if bits == 32 else [f"w{layer}", f"s{layer}", f"b{layer}"])
    ]
    inputs = ["x", "router", *values]
    if bits != 32:
        inputs += [""] * (11 - len(inputs))
        inputs += [f"z{layer}" if f"z{layer}" in tensors else "" for layer in range(3)]
        inputs += ["weights"] if has_weights else []
        attributes |= {"expert_weight_bits": bits} | ({"block_size": block} if block else {})
    attributes |= {"k": 2, "activation_type": activation}
    if activation == "swiglu":
        attributes["swiglu_fusion"] = fusion
    node = helper.make_node("MoE" if bits == 32 else "QMoE", inputs, ["y"], domain=CONTRIB, **attributes)
    return graph([node], tensors, "x", "router", *(["weights"] if has_weights else [])), (dense, biases)


def expected_of_experts(feed: Feed, layers: Any, activation: str, given: Mapping[str, Any]) -> NDArray[np.float64]:
    (dense, biases), fusion = layers, given.get("fusion", 1)
    alpha, beta = given.get("activation_alpha", 1.0), given.get("activation_beta", 0.0)
    limit = given.get("swiglu_limit", np.inf)
    found = np.zeros((len(feed["x"]), dense[1].shape[1]))
    for token, (x, scores) in enumerate(
        zip(feed["x"].astype(np.float64), feed["router"].astype(np.float64), strict=True)
    ):
        chosen = np.argsort(-scores)[:2]
        weights = np.exp(scores - scores.max())[chosen] / np.exp(scores - scores.max()).sum()
        if "weights" in feed:
            weights = feed["weights"][token][chosen].astype(np.float64)
        if given.get("normalize_routing_weights"):
            weights /= weights.sum()
        for expert, weight in zip(chosen, weights, strict=True):
            h = dense[0][expert] @ x + biases[0][expert]
            if activation == "swiglu":
                gates, values = (
                    (h[0::2], h[1::2])
                    if fusion == 1
                    else np.split(h, 2)
                    if fusion
                    else (h, dense[2][expert] @ x + biases[2][expert])
                )
                gates, values = np.minimum(gates, limit), np.clip(values, -limit, limit)
                h = gates / (1 + np.exp(-alpha * gates)) * (values + beta)
            elif activation == "silu":
                h = h / (1 + np.exp(-h))
            elif activation == "relu":
                h = np.maximum(h, 0)
            elif activation == "gelu":
                h = 0.5 * h * (1 + np.tanh(0.7978845608 * (h + 0.044715 * h**3)))
            found[token] += weight * (dense[1][expert] @ h + biases[1][expert])
    return found


NORMALIZED = {"normalize_routing_weights": 1}
LIMITED = NORMALIZED | {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}
# ONNX Runtime's QMoE normalizes weights although the attribute says no, and computes less of the layouts.
EXPERTS = [
    ("swiglu", LIMITED, True),
    ("swiglu", {}, True),
    ("silu", {}, True),
    ("relu", NORMALIZED, True),
    ("gelu", NORMALIZED, True),
    ("identity", {}, True),
    ("swiglu", LIMITED | {"bits": 4}, True),
    ("swiglu", LIMITED | {"bits": 4, "accuracy_level": 4}, True),
    ("swiglu", NORMALIZED | {"bits": 4, "zeros": True}, True),
    ("swiglu", NORMALIZED | {"bits": 8}, True),
    ("swiglu", NORMALIZED | {"bits": 2}, True),
    ("gelu", NORMALIZED | {"bits": 4, "block": 0}, True),
    ("swiglu", NORMALIZED | {"bits": 4, "has_weights": True}, True),
    ("swiglu", {"bits": 4, "has_weights": True}, True),
    ("silu", {"bits": 4}, False),
    ("swiglu", LIMITED | {"fusion": 2}, False),
    ("swiglu", NORMALIZED | {"bits": 4, "fusion": 0}, False),
]


@pytest.mark.parametrize(("activation", "given", "library"), EXPERTS, ids=str)
def test_experts(activation: str, given: Mapping[str, Any], library: bool) -> None:
    model, layers = experts(activation, **given)
    feed = {"x": randoms(5, 64, 128), "router": randoms(6, 64, 5)}
    if given.get("has_weights"):
        feed["weights"] = np.abs(randoms(7, 64, 5)) + np.float32(0.1)
    is_rounded = given.get("accuracy_level") == 4 or given.get("bits") == 8
    error = check(model, feed, expected_of_experts(feed, layers, activation, given), library=library)
    assert error < (0.02 if is_rounded else 1e-6)


def passed(model: onnx.ModelProto, num_tokens: int = 3, size: int = 128, routed: tuple[int, int] = (3, 5)) -> Any:
    """The result of a pass of experts over tokens of this size, with the router's values for tokens and experts."""
    return session_of(model.graph).run(None, {"x": randoms(5, num_tokens, size), "router": randoms(6, *routed)})[0]


def test_a_router_without_numbers_ends_no_process() -> None:
    feed = {"x": randoms(5, 3, 128), "router": np.full((3, 5), np.nan, np.float32)}
    assert session_of(packed(experts("swiglu")[0]).graph).run(None, feed)[0].shape == (3, 128)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 127}, "the tokens have 127 values"),
        ({"routed": (3, 4)}, "the router's values are not those of 3 tokens and 5 experts"),
        ({"routed": (2, 5)}, "the router's values"),
    ],
)
def test_a_wrong_pass_of_experts_is_refused(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        passed(packed(experts("swiglu")[0]), **given)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"experts": 0}, "experts, k or inner"),
        ({"k": 6}, "experts, k or inner"),
        ({"inner": 0}, "experts, k or inner"),
        ({"activation": 9}, "activation must be"),
        ({"bits": 5}, "bits must be"),
        ({"experts": 1 << 19, "K": (1 << 31) - 1}, "too large"),
        ({"experts": 6, "k": 2}, "have a wrong size"),
        ({"bits": 16}, "another type than 16 bits"),
        ({"bits": 4, "block": 32, "second_block": 32}, "another type than 4 bits"),
        ({"inner": 90}, "have a wrong size"),
    ],
)
def test_wrong_attributes_of_experts_are_refused(wrong: Mapping[str, int], message: str) -> None:
    model = packed(experts("swiglu")[0])
    (node,) = model.graph.node
    kept = [attribute for attribute in node.attribute if attribute.name not in wrong]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in wrong.items())])
    num_experts = wrong.get("experts", 5)
    with pytest.raises(Exception, match=message):
        passed(model, routed=(3, num_experts if num_experts < 10 else 5))


def _nbits_with(**attributes: int) -> onnx.ModelProto:
    tensors, _ = quantized(4, 64, 64, 32, zeros=False)
    given: dict[str, Any] = {"K": 64, "N": 64, "bits": 4, "block_size": 32} | attributes
    return _nbits(tensors, **given)


def _node(
    operator: str, tensors: Mapping[str, NDArray[Any]], *others: onnx.NodeProto, **attributes: Any
) -> onnx.ModelProto:
    inputs = attributes.pop("inputs", ["x", *tensors])
    return graph([*others, helper.make_node(operator, inputs, ["y"], "/head", **attributes)], tensors, "x")


FORM = "the weights of /head are of a form that genai-server-native does not know"
WEIGHTS = MappingProxyType({"w": randoms(1, 8, 8)})


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (_nbits_with(bits=3), "it has weights of 3 bits"),
        (_nbits_with(block_size=8), "it has weights in blocks of 8"),
        (_nbits_with(weight_prepacked=1), "its weights are in the order of another device"),
        (_node("MatMul", WEIGHTS, inputs=["w", "x"]), FORM),
        (_node("MatMul", {"w": randoms(1, 2, 8, 8)}), FORM),
        (_node("MatMul", {"w": np.ones((8, 8))}), FORM),
        (_node("Gemm", WEIGHTS, alpha=2.0), FORM),
        (_node("Gemm", WEIGHTS, transA=1), FORM),
        (_node("Gemm", dict(WEIGHTS) | {"b": randoms(2, 1)}), FORM),
        (_node("MatMul", WEIGHTS, helper.make_node("Neg", ["w"], ["n"]), inputs=["x", "n"]), FORM),
        (_node("FusedMatMul", WEIGHTS, domain=CONTRIB), "its operator FusedMatMul is not among those of"),
        (experts("swiglu", use_sparse_mixer=1)[0], "its experts are chosen by a sparse mixer"),
        (experts("geglu")[0], "its experts have the activation geglu"),
        (experts("swiglu", bits=4, quant_type="fp4")[0], "are in the form of another device"),
        (experts("swiglu", bits=4, fc2_expert_weight_bits=8)[0], "its experts have weights of 4 and 8 bits"),
        # Nothing is added up, or nothing is constant.
        (_node("MatMul", {"w": randoms(1, 8, 1)}, inputs=["w", "x"]), None),
        (_node("MatMul", {}, inputs=["x", "x"]), None),
    ],
)
def test_what_remains_onnx_runtimes_is_named(model: onnx.ModelProto, why: str | None) -> None:
    found = why_not_packed(model.graph)
    assert found is None if why is None else found is not None and why in found


def test_weights_that_a_caller_may_replace_are_not_packed() -> None:
    """As those of adapters."""
    model = _node("MatMul", WEIGHTS)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [8, 8]))
    assert [node.op_type for node in packed(model).graph.node] == ["MatMul"]
