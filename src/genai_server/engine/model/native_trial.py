"""A program that tries the kernels of genai-server-native for an instruction set on this processor: `python -m
genai_server.engine.model.native_trial INSTRUCTION_SET`.

It ends with status 0 if matrix products, experts, attention, layers with recurrent states and adapters are computed
correctly. It runs as a separate process, because faulty kernels may crash it.
"""

import sys
from itertools import product
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_rewriting.native_attention import OPERATOR
from genai_server.engine.graph_rewriting.packed_products import DOMAIN, PACKED, PACKED_EXPERTS
from genai_server.engine.graph_rewriting.packed_weights import (
    FloatMatrix,
    QuantizedMatrix,
    alternating,
    pack,
    padded_to_panels,
    several,
)

_FLOAT, _INT32 = TensorProto.FLOAT, TensorProto.INT32
_INPUTS, _OUTPUTS, _BLOCKS = 384, 136, (16, 32, 64, 128)
# So many inputs that threads share them.
_MANY_INPUTS = 4096
# Kernels differ by the number of rows: AMX takes tiles of up to 16 for more than 4.
_ROWS = (3, 7, 21)
_HEADS, _CACHE_HEADS, _SIZE, _LENGTH, _PAST, _TOKENS = 6, 2, 32, 160, 100, 9
# Shares of the results' standard deviation. Activations are rounded to 127 steps of the largest in a block.
_MAX_PRODUCT_ERROR, _MAX_ATTENTION_ERROR, _MAX_FLOAT_ERROR = 0.06, 1e-4, 1e-4
# The same for attention whose keys and values are rounded to 127 steps of the largest number in a head.
_MAX_NARROW_ERROR = 0.06
_EXPERTS, _INNER, _ACTIVATIONS = 3, 70, 5


def main(instruction_set: str) -> None:
    """Run all kernels of genai-server-native for an instruction set, and compare their results with numpy's. Raises
    ValueError, which names the kernel, if a result is wrong.
    """
    import genai_server_native

    genai_server_native.use(instruction_set)
    for bits, block, rows in product((4, 8), _BLOCKS, _ROWS):
        what = f"a product of {bits} bits in blocks of {block} with {rows} rows"
        _check(what, *_product(bits, block, rows), _MAX_PRODUCT_ERROR)
    for bits in (4, 8):
        what = f"a product of {bits} bits and activations of 32"
        _check(what, *_product_of_any(bits, min(_BLOCKS), max(_ROWS), 32), _MAX_FLOAT_ERROR)
    for activation_bits, max_error in ((8, _MAX_PRODUCT_ERROR), (32, _MAX_FLOAT_ERROR)):
        what = f"a product of {_MANY_INPUTS} inputs and activations of {activation_bits} bits"
        found = _product_of_any(4, max(_BLOCKS), max(_ROWS), activation_bits, _MANY_INPUTS)
        _check(what, *found, max_error)
    for kind, rows in product((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16), _ROWS):
        element = helper.tensor_dtype_to_np_dtype(kind)
        _check(f"a product with weights of type {element}", *_product_of_floats(element, rows), _MAX_FLOAT_ERROR)
    for activation in range(_ACTIVATIONS):
        _check(f"the activation {activation} of experts", *_experts(activation), _MAX_FLOAT_ERROR)
    _check("attention", *_attention(np.float32), _MAX_ATTENTION_ERROR)
    _check("attention with a KV cache of 8 bits", *_attention(np.int8), _MAX_NARROW_ERROR)
    _check("a convolution", *_convolution(), _MAX_FLOAT_ERROR)
    _check("linear attention", *_linear_attention(), _MAX_FLOAT_ERROR)
    _check("the matrices of an adapter", *_low_rank(), _MAX_FLOAT_ERROR)


def _check(what: str, actual: NDArray[Any], expected: NDArray[Any], max_error: float) -> None:
    error = float(np.abs(actual - expected).max() / expected.std())
    if not error <= max_error:
        raise ValueError(f"{what} is wrong by {error:.2g} of its standard deviation")


def _product(bits: int, block: int, rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
    return _product_of_any(bits, block, rows, 8)


def _product_of_any(
    bits: int, block: int, rows: int, activation_bits: int, num_inputs: int = _INPUTS
) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(bits)
    weights = rng.integers(0, 1 << bits, (_OUTPUTS, num_inputs), np.uint8)
    scales, offsets = (rng.random((_OUTPUTS, num_inputs // block), np.float32) for _ in range(2))
    packed = pack(QuantizedMatrix(weights, scales, offsets, bits, num_inputs, block))
    tensors: dict[str, Any] = {"w": packed.weights.reshape(-1), "s": packed.scales, "o": packed.offsets}
    attributes: dict[str, Any] = {"N": _OUTPUTS, "K": num_inputs, "block": block, "bits": bits}
    attributes["activation_bits"] = activation_bits
    node = helper.make_node(PACKED, ["x", *tensors], ["y"], domain=DOMAIN, **attributes)
    x = rng.standard_normal((rows, num_inputs), np.float32)
    dense = (weights.astype(np.float64) - (1 << (bits - 1))) * np.repeat(scales, block, 1) + np.repeat(
        offsets, block, 1
    )
    initializers = [numpy_helper.from_array(array, name) for name, array in tensors.items() if array is not None]
    return _run(node, {"x": x}, initializers), x @ dense.T


def _product_of_floats(kind: Any, rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(rows)
    weights = rng.standard_normal((_OUTPUTS, _INPUTS), np.float32).astype(kind)
    x = rng.standard_normal((rows, _INPUTS), np.float32)
    attributes: dict[str, Any] = {"N": _OUTPUTS, "K": _INPUTS, "bits": 8 * weights.itemsize}
    node = helper.make_node(PACKED, ["x", "w"], ["y"], domain=DOMAIN, **attributes)
    packed = numpy_helper.from_array(pack(FloatMatrix(weights)).weights.reshape(-1), "w")
    return _run(node, {"x": x}, [packed]), x @ weights.astype(np.float64).T


def _experts(activation: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run the operator PackedExperts, a mixture-of-experts layer, on random data, and compute the same with numpy.
    Returns the operator's result and numpy's.

    `activation` is the operator's number for the activation function. Every token uses all experts, weighted by the
    softmax of the router's scores.
    """
    rng = np.random.default_rng(activation)
    gates, values = rng.standard_normal((2, _EXPERTS, _INNER, _INPUTS)).astype(np.float32) / 16
    second = rng.standard_normal((_EXPERTS, _INPUTS, _INNER)).astype(np.float32)
    x, router = (rng.standard_normal((max(_ROWS), size), np.float32) for size in (_INPUTS, _EXPERTS))
    layers = [padded_to_panels(FloatMatrix(matrix)) for matrix in gates]
    if activation == 0:
        layers = [
            alternating(gate, padded_to_panels(FloatMatrix(matrix)))
            for gate, matrix in zip(layers, values, strict=True)
        ]
    tensors = {"first": several(layers), "second": several([FloatMatrix(matrix) for matrix in second])}
    attributes: dict[str, Any] = {"experts": _EXPERTS, "k": _EXPERTS, "inner": _INNER, "K": _INPUTS, "bits": 32}
    inputs = ["x", "router", "", "first", "", "", "", "second"]
    node = helper.make_node(PACKED_EXPERTS, inputs, ["y"], domain=DOMAIN, activation=activation, **attributes)
    result = _run(
        node,
        {"x": x, "router": router},
        [numpy_helper.from_array(matrix.weights.reshape(-1), name) for name, matrix in tensors.items()],
    )
    h = np.einsum("tk,enk->etn", x.astype(np.float64), gates)
    if activation == 0:
        h = h / (1 + np.exp(-h)) * np.einsum("tk,enk->etn", x.astype(np.float64), values)
    elif activation == 1:
        h = np.maximum(h, 0)
    elif activation == 2:
        h = 0.5 * h * (1 + np.tanh(0.7978845608 * (h + 0.044715 * h**3)))
    elif activation == 3:
        h = h / (1 + np.exp(-h))
    weights = np.exp(router.astype(np.float64))
    weights /= weights.sum(1, keepdims=True)
    return result, np.einsum("te,etn,ekn->tk", weights, h, second)


def _attention(cache_type: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(1)
    width = (_HEADS + 2 * _CACHE_HEADS) * _SIZE
    x = rng.standard_normal((1, _TOKENS, width), np.float32)
    caches = rng.standard_normal((2, 1, _CACHE_HEADS, _LENGTH, _SIZE), np.float32)
    stored = caches.copy()
    if cache_type == np.int8:
        scales = np.abs(caches).max(-1, keepdims=True) / 127
        stored = np.concatenate([np.rint(caches / scales).astype(np.int8), scales.view(np.int8)], axis=-1)
    feed = {"x": x, "k": stored[0], "v": stored[1]}
    feed |= {
        name: np.array(value, np.int32)
        for name, value in (("starts", [0, _TOKENS]), ("pasts", [_PAST]), ("slots", [0]))
    }
    attributes: dict[str, Any] = {"num_heads": _HEADS, "kv_num_heads": _CACHE_HEADS}
    node = helper.make_node(
        OPERATOR, ["x", "", "", "k", "v", "starts", "pasts", "slots"], ["y"], domain=DOMAIN, **attributes
    )
    parts = x[0].reshape(_TOKENS, -1, _SIZE)
    caches[:, 0, :, _PAST : _PAST + _TOKENS] = (
        parts[:, _HEADS:].reshape(_TOKENS, 2, _CACHE_HEADS, _SIZE).transpose(1, 2, 0, 3)
    )
    keys, values = (np.repeat(cache[0, :, : _PAST + _TOKENS], _HEADS // _CACHE_HEADS, 0) for cache in caches)
    scores = np.einsum("thd,hsd->hts", parts[:, :_HEADS].astype(np.float64), keys) / np.sqrt(_SIZE)
    scores += np.where(np.arange(_PAST + _TOKENS) > _PAST + np.arange(_TOKENS)[:, None], -np.inf, 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hts,hsd->thd", weights / weights.sum(-1, keepdims=True), values)
    return _run(node, feed)[0], expected.reshape(_TOKENS, -1)


def _rows(slots: int = 1) -> dict[str, NDArray[Any]]:
    """Return the inputs, by name, that tell the operators of genai-server-native which rows a pass has: a single
    sequence of `_TOKENS` tokens, in the last of `slots` KV cache slots.
    """
    inputs = {"starts": [0, _TOKENS], "slots": [slots - 1], "committed": [_TOKENS]}
    return {name: np.array(values, np.int32) for name, values in inputs.items()}


def _convolution() -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(3)
    x, state = (rng.standard_normal((1, tokens, _OUTPUTS), np.float32) for tokens in (_TOKENS, 3))
    weights, bias = rng.standard_normal((4, _OUTPUTS), np.float32), rng.standard_normal(_OUTPUTS, np.float32)
    feed = {"x": x, "weights": weights, "state": state.copy(), **_rows(), "bias": bias}
    node = helper.make_node("RaggedConvolution", list(feed), ["y"], domain=DOMAIN, silu=1)
    inputs = np.concatenate([state[0], x[0]]).astype(np.float64)
    sums = bias + sum(inputs[tap : tap + _TOKENS] * weights[tap] for tap in range(len(weights)))
    return _run(node, feed)[0], sums / (1 + np.exp(-sums))


def _linear_attention() -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(4)
    query, key = (rng.standard_normal((1, _TOKENS, _SIZE), np.float32) / _SIZE for _ in range(2))
    value, state = rng.standard_normal((1, _TOKENS, 72), np.float32), rng.standard_normal((1, 1, _SIZE, 72), np.float32)
    decay, rate = -rng.random((1, _TOKENS, 1), np.float32), rng.random((1, _TOKENS, 1), np.float32)
    feed: dict[str, NDArray[Any]] = {"query": query, "key": key, "value": value, "state": state.copy(), **_rows()}
    feed |= {"decay": decay, "rate": rate}
    heads: dict[str, Any] = {"q_num_heads": 1, "kv_num_heads": 1, "scale": 1.0}
    node = helper.make_node("RaggedLinearAttention", list(feed), ["y"], domain=DOMAIN, **heads)
    expected, expected_state = np.empty((_TOKENS, 72)), state[0, 0].astype(np.float64)
    for t in range(_TOKENS):
        expected_state *= np.exp(decay[0, t])
        expected_state += np.outer(key[0, t], rate[0, t] * (value[0, t] - key[0, t] @ expected_state))
        expected[t] = query[0, t] @ expected_state
    return _run(node, feed)[0], expected


def _low_rank() -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(5)
    x, a = rng.standard_normal((1, _TOKENS, _INPUTS), np.float32), rng.standard_normal((20, _INPUTS), np.float32)
    b, starts = rng.standard_normal((20, _OUTPUTS), np.float32), np.array([0, _TOKENS], np.int32)
    feed: dict[str, NDArray[Any]] = {"x": x, "a": a, "b": b, "starts": starts}
    feed |= {"ranks": np.array([3], np.int32), "num_ranks": np.array([17], np.int32)}
    node = helper.make_node("RaggedLowRank", list(feed), ["y"], domain=DOMAIN)
    return _run(node, feed)[0], x[0].astype(np.float64) @ a[3:].T @ b[3:]


def _run(node: onnx.NodeProto, feed: dict[str, NDArray[Any]], tensors: list[TensorProto] | None = None) -> NDArray[Any]:
    import genai_server_native
    import onnxruntime

    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feed.items()}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    output = helper.make_tensor_value_info("y", _FLOAT, None)
    graph = helper.make_graph([node], "trial", inputs, [output], tensors or [])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 4
    options.register_custom_ops_library(str(genai_server_native.library()))
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    result: NDArray[Any] = session.run(None, feed)[0]
    return result


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        sys.exit(f"{type(error).__name__}: {error}")
