"""Converts ONNX Runtime's mixture-of-experts operators MoE and QMoE to genai-server-native's PackedExperts
(native/README.md).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from genai_server.engine.graph_rewriting.constants import FLOATS, Constants
from genai_server.engine.graph_rewriting.packed_weights import (
    FloatMatrix,
    Matrix,
    PackedWeights,
    QuantizedMatrix,
    alternate,
    alternating,
    quantized_matrix,
    several,
    unpacked,
    with_whole_panels,
)
from genai_server.engine.graph_rewriting.stored_weights import DataFile, InlineData, Weights

_FLOATS, _QUANTIZED = "MoE", "QMoE"
EXPERTS = (_FLOATS, _QUANTIZED)
# In the order of the operator's numbers. Only SwiGLU has gates and values.
_SWIGLU, _SILU = "swiglu", "silu"
_ACTIVATIONS = (_SWIGLU, "relu", "gelu", _SILU, "identity")
# Accuracy level of activations of 8 bits.
_INT8_ACTIVATIONS = 4
_BITS = (2, 4, 8)
_MIN_BLOCK = 16
_ALL = slice(None)


class _Part(NamedTuple):
    """Names of the tensors for one of the matrix products in the experts; "" for tensors that the product does not
    have.
    """

    weights: str
    scales: str
    zeros: str
    bias: str


class _Experts(NamedTuple):
    """Attributes and inputs of a MoE or QMoE node of an ONNX graph.

    `first`, `second` and `third` are the matrix products fc1, fc2 and fc3. If gates and gated values are separate
    products, `first` computes the gates and `third` the values. Otherwise the names in `third` are "".
    """

    given: dict[str, Any]
    tokens: str
    router: str
    router_weights: str
    first: _Part
    second: _Part
    third: _Part
    # Inputs that genai-server-native does not know.
    rest: list[str]

    @property
    def activation(self) -> str:
        return str(self.given.get("activation_type", b"relu").decode())

    @property
    def has_gates(self) -> bool:
        return self.activation == _SWIGLU or bool(self.third.weights)

    @property
    def bits(self) -> set[int]:
        every = self.given.get("expert_weight_bits", 4)
        return {self.given.get(f"fc{number}_expert_weight_bits", every) for number in (1, 2)}

    @property
    def block(self) -> int:
        """Number of consecutive inputs whose weights for one output share a scale; 0 if all inputs share one."""
        return int(self.given.get("block_size", 0))


def _read(node: onnx.NodeProto) -> _Experts:
    inputs = [*node.input, *[""] * 21]
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == _FLOATS:
        first, second, third = (_Part(inputs[at], "", "", inputs[at + 1]) for at in (2, 4, 6))
        return _Experts(given, inputs[0], inputs[1], "", first, second, third, [])
    first, second, third = (
        _Part(inputs[at], inputs[at + 1], inputs[zeros], inputs[at + 2]) for at, zeros in ((2, 11), (5, 12), (8, 13))
    )
    return _Experts(
        given, inputs[0], inputs[1], inputs[14], first, second, third, [name for name in inputs[15:] if name]
    )


def why_not_experts(node: onnx.NodeProto, constants: Constants) -> str | None:
    """The reason why genai-server-native cannot compute a MoE or QMoE node; None if it can."""
    experts = _read(node)
    known = FLOATS if node.op_type == _FLOATS else (TensorProto.UINT8,)
    for part in (experts.first, experts.second, *([experts.third] if experts.third.weights else [])):
        shape, kinds = constants.shape(part.weights), [constants.kind(name) for name in part if name]
        if shape is None or len(shape) != 3 or kinds[0] not in known or None in kinds:
            return "the weights of its experts are of a form that genai-server-native does not know"
    if experts.activation not in _ACTIVATIONS or (experts.third.weights and experts.activation not in (_SWIGLU, _SILU)):
        return f"its experts have the activation {experts.activation}"
    if experts.has_gates and not experts.third.weights and experts.given.get("swiglu_fusion", 0) not in (1, 2):
        return "its experts have no values beside the gates"
    if experts.given.get("use_sparse_mixer"):
        return "its experts are chosen by a sparse mixer"
    if node.op_type == _FLOATS:
        return None
    given = experts.given
    if experts.rest or given.get("quant_type", b"int") != b"int" or given.get("weights_prepacked", -1) == 1:
        return "the weights of its experts are in the form of another device"
    if (
        len(experts.bits) > 1
        or not experts.bits.issubset(_BITS)
        or not (experts.first.scales and experts.second.scales)
    ):
        return f"its experts have weights of {' and '.join(map(str, sorted(experts.bits)))} bits"
    return f"its experts have weights in blocks of {experts.block}" if experts.block % _MIN_BLOCK else None


class _Tensors(NamedTuple):
    """The weights of one matrix product for all experts, as arrays [experts, outputs, …]."""

    weights: NDArray[Any]
    # float32 [experts, outputs, blocks]: scales of quantized weights, and zero points if they have any.
    scales: NDArray[Any] | None
    zeros: NDArray[np.float32] | None
    bias: NDArray[Any] | None
    bits: int
    block: int

    @property
    def num_inputs(self) -> int:
        return int(self.weights.shape[2]) * (1 if self.scales is None else 8 // self.bits)

    def matrix(self, expert: int, outputs: slice = _ALL) -> Matrix:
        """Return the weights of the expert with this index, for all outputs or only those in the slice `outputs`."""
        rows = self.weights[expert, outputs]
        if self.scales is None:
            return FloatMatrix(rows)
        zeros = None if self.zeros is None else self.zeros[expert, outputs]
        return quantized_matrix(rows, self.scales[expert, outputs], zeros, self.bits, self.num_inputs, self.block)


def _load(part: _Part, weights: Weights, bits: int, block: int) -> _Tensors:
    values, scales, zeros, bias = (weights.array(name) if name else None for name in part)
    assert values is not None
    if scales is None:
        return _Tensors(values, None, None, bias, bits, 0)
    num_experts, num_outputs = values.shape[:2]
    scales = scales.reshape(num_experts, num_outputs, -1)
    points = None
    if zeros is not None and zeros.ndim == 2:  # those of a row's outputs are packed
        points = unpacked(zeros, bits)[:, :num_outputs, np.newaxis]
    elif zeros is not None:
        rows = unpacked(zeros.reshape(num_experts * num_outputs, -1), bits)[:, : scales.shape[2]]
        points = rows.reshape(scales.shape)
    block = block or math.ceil(values.shape[2] * 8 / bits / _MIN_BLOCK) * _MIN_BLOCK
    return _Tensors(values, scales, None if points is None else points.astype(np.float32), bias, bits, block)


def pack_experts(
    node: onnx.NodeProto, weights: Weights, data: DataFile | InlineData
) -> tuple[list[str], dict[str, Any]]:
    """Pack the weights of a MoE or QMoE node and add them to `data`. Returns the inputs and attributes of the
    PackedExperts node that replaces it.

    The node must be one for which `why_not_experts` returns None. `weights` reads the tensors of the graph.
    """
    experts = _read(node)
    given, bits = experts.given, min(experts.bits)
    second = _load(experts.second, weights, bits, experts.block)
    layer, bias = _first_layer(experts, weights, bits)
    numbers = range(len(second.weights))
    form = layer[0]
    attributes: dict[str, Any] = {
        "experts": len(numbers),
        "k": given.get("k", 1),
        "inner": second.num_inputs,
        "normalize_routing_weights": given.get("normalize_routing_weights", 0),
        "activation": 0 if experts.has_gates else _ACTIVATIONS.index(experts.activation),
    }
    if experts.activation == _SWIGLU:
        attributes |= {
            "alpha": given.get("activation_alpha", 1.0),
            "beta": given.get("activation_beta", 0.0),
            "limit": given.get("swiglu_limit", math.inf),
            "limits_result": given.get("swiglu_limit_after_activation", 0),
        }
    if isinstance(form, QuantizedMatrix):
        # ONNX Runtime has no products of floats with 8 bits in blocks.
        is_rounded = given.get("accuracy_level") == _INT8_ACTIVATIONS or (bits == 8 and experts.block > 0)
        attributes |= {"K": form.num_inputs, "bits": form.bits, "block": form.block, "second_block": second.block}
        attributes["activation_bits"] = 8 if is_rounded else 32
    else:
        attributes |= {"K": form.weights.shape[1], "bits": 8 * form.weights.itemsize}
    added = [
        *_add(f"{node.output[0]}.first", several(layer), bias, data),
        *_add(f"{node.output[0]}.second", several([second.matrix(n) for n in numbers]), second.bias, data),
    ]
    inputs = [experts.tokens, experts.router, experts.router_weights, *added]
    while not inputs[-1]:
        inputs.pop()
    return inputs, attributes


def _first_layer(experts: _Experts, weights: Weights, bits: int) -> tuple[list[Matrix], NDArray[Any] | None]:
    """Return the matrix of the first layer for each expert, and the biases [experts, outputs] or None.

    If the experts have gates, groups of 64 outputs of the gate projection and of the up projection alternate in a
    matrix. The outputs of each projection are padded with zeros to a multiple of 64, the number that the kernel
    computes at once.
    """
    first = _load(experts.first, weights, bits, experts.block)
    numbers = range(len(first.weights))
    if not experts.has_gates:
        bias = None if first.bias is None else np.stack([_panels(row) for row in first.bias])
        return [with_whole_panels(first.matrix(n)) for n in numbers], bias
    values, (here, there) = first, (_ALL, _ALL)
    if experts.third.weights:
        values = _load(experts.third, weights, bits, experts.block)
    elif experts.given["swiglu_fusion"] == 1:
        here, there = slice(0, None, 2), slice(1, None, 2)
    else:
        half = first.weights.shape[1] // 2
        here, there = slice(half), slice(half, None)
    layer = [
        alternating(with_whole_panels(first.matrix(n, here)), with_whole_panels(values.matrix(n, there)))
        for n in numbers
    ]
    if first.bias is None and values.bias is None:
        return layer, None
    biases = [
        np.zeros((len(numbers), layer[0].weights.shape[0] // 2), np.float32) if one.bias is None else one.bias[:, rows]
        for one, rows in ((first, here), (values, there))
    ]
    return layer, np.stack([alternate(_panels(gate), _panels(value)) for gate, value in zip(*biases, strict=True)])


def _panels(values: NDArray[Any]) -> NDArray[Any]:
    """Pad values [outputs] with zeros to a multiple of 64 outputs, the number that the kernel computes at once."""
    whole = with_whole_panels(FloatMatrix(values[:, np.newaxis])).weights
    found: NDArray[Any] = whole[:, 0]
    return found


def _add(name: str, packed: PackedWeights, bias: NDArray[Any] | None, data: DataFile | InlineData) -> list[str]:
    """Add the tensors of a packed layer to `data`. Returns the tensors' names, "" for tensors that the layer does not
    have.

    `name` is the beginning of these names.
    """
    arrays = {"packed": packed.weights.reshape(-1), "packed_scales": packed.scales, "packed_offsets": packed.offsets}
    if bias is not None:
        arrays["packed_bias"] = np.ascontiguousarray(bias, np.float32)
    names = {part: data.add({f"{name}.{part}": array})[0] for part, array in arrays.items() if array is not None}
    return [names.get(part, "") for part in ("packed", "packed_scales", "packed_offsets", "packed_bias")]
