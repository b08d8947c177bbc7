"""Replaces the matrix products and mixture-of-experts layers of a model's graph with operators of genai-server-native,
this project's library for CPUs, which read packed weights: weights in the order in which its kernels need them.
`write_packed_model` writes such a graph to a file, and `pack_products` changes a model in memory.

The operators PackedMatMul and PackedExperts (native/README.md) compute each row bitwise the same, whatever other rows
are in the pass. In products with accuracy level 4, activations are rounded to 8 bits for each row and block of inputs,
as in ONNX Runtime; in others they remain floats. Packed weights are ordinary tensors, so ONNX Runtime maps them from
their file into memory and has nothing to pack when a model is loaded. Weights with 16 bits keep 16 bits. PackedExperts
replaces ONNX Runtime's operators MoE and QMoE.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from genai_server.engine.graph_description import DoesNotFit
from genai_server.engine.graph_rewriting.cpu_operators import use_fast_operators, widen
from genai_server.engine.graph_rewriting.onnx_graph import FLOATS, Constants, DataFile, InlineData, Weights, replace
from genai_server.engine.graph_rewriting.packed_weights import (
    PANEL,
    FloatMatrix,
    Matrix,
    PackedWeights,
    QuantizedMatrix,
    alternate,
    alternating,
    has_same_format,
    pack,
    padded_to_panels,
    quantized_matrix,
    rounded,
    several,
    unpacked,
)

_FLOAT_EXPERTS, _QUANTIZED_EXPERTS = "MoE", "QMoE"
EXPERTS = (_FLOAT_EXPERTS, _QUANTIZED_EXPERTS)
# In the order of the operator's numbers. Only SwiGLU has gates and values.
_SWIGLU, _SILU = "swiglu", "silu"
_ACTIVATIONS = (_SWIGLU, "relu", "gelu", _SILU, "identity")
# Accuracy level of activations of 8 bits.
_INT8_ACTIVATIONS = 4
_BITS = (2, 4, 8)
_MIN_BLOCK = 16
_ALL = slice(None)
PACKED, PACKED_EXPERTS = "PackedMatMul", "PackedExperts"
DOMAIN = "genai_server.native"
_QUANTIZED = "MatMulNBits"
_FLOAT = ("MatMul", "Gemm")
# Other operators that multiply activations with weights.
_OTHERS = {
    *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm"),
    *("GatherMatMulNBits", "MatMulBnb4", "FusedMatMul", "FusedGemm", "GemmFloat8", "Einsum"),
}
# Inputs of a MatMulNBits after the activations.
_WEIGHTS, _SCALES, _ZEROS, _ORDER, _BIAS = range(1, 6)
# Maximum size in bytes of weights that are stored in the model itself, which can have at most 2 GiB.
_MAX_INLINE = 1024**3


class _Part(NamedTuple):
    """The names of the tensors that one of the matrix products in a mixture-of-experts layer reads; "" for tensors that
    it does not have, such as scales if its weights are not quantized.
    """

    weights: str
    scales: str
    zeros: str
    bias: str


class _Experts(NamedTuple):
    """The attributes and inputs of a mixture-of-experts layer, a MoE or QMoE node of an ONNX graph, as `_read` returns
    them.

    `first`, `second` and `third` are the matrix products fc1, fc2 and fc3 of ONNX Runtime's operators. If the experts
    have gates, and gates and gated values are computed by separate products, `first` computes the gates and `third` the
    values. Otherwise the names in `third` are "".
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
        """Number of consecutive inputs whose quantized weights for one output share a scale; 0 if the weights for all
        inputs share one scale.
        """
        return int(self.given.get("block_size", 0))


def _read(node: onnx.NodeProto) -> _Experts:
    inputs = [*node.input, *[""] * 21]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == _FLOAT_EXPERTS:
        first, second, third = (_Part(inputs[at], "", "", inputs[at + 1]) for at in (2, 4, 6))
        return _Experts(attributes, inputs[0], inputs[1], "", first, second, third, [])
    first, second, third = (
        _Part(inputs[at], inputs[at + 1], inputs[zeros], inputs[at + 2]) for at, zeros in ((2, 11), (5, 12), (8, 13))
    )
    return _Experts(
        attributes, inputs[0], inputs[1], inputs[14], first, second, third, [name for name in inputs[15:] if name]
    )


def why_not_experts(node: onnx.NodeProto, constants: Constants) -> str | None:
    """Return the reason why genai-server-native cannot compute a mixture-of-experts layer, the MoE or QMoE node `node`;
    None if it can. `constants` are those of the node's graph.
    """
    experts = _read(node)
    supported = FLOATS if node.op_type == _FLOAT_EXPERTS else (TensorProto.UINT8,)
    for part in (experts.first, experts.second, *([experts.third] if experts.third.weights else [])):
        shape, kinds = constants.shape(part.weights), [constants.kind(name) for name in part if name]
        if shape is None or len(shape) != 3 or kinds[0] not in supported or None in kinds:
            return "the weights of its experts are of a form that genai-server-native does not know"
    if experts.activation not in _ACTIVATIONS or (experts.third.weights and experts.activation not in (_SWIGLU, _SILU)):
        return f"its experts have the activation {experts.activation}"
    if experts.has_gates and not experts.third.weights and experts.given.get("swiglu_fusion", 0) not in (1, 2):
        return "its experts have no values beside the gates"
    if experts.given.get("use_sparse_mixer"):
        return "its experts are chosen by a sparse mixer"
    if node.op_type == _FLOAT_EXPERTS:
        return None
    attributes = experts.given
    if experts.rest or attributes.get("quant_type", b"int") != b"int" or attributes.get("weights_prepacked", -1) == 1:
        return "the weights of its experts are in the form of another device"
    if (
        len(experts.bits) > 1
        or not experts.bits.issubset(_BITS)
        or not (experts.first.scales and experts.second.scales)
    ):
        return f"its experts have weights of {' and '.join(map(str, sorted(experts.bits)))} bits"
    return f"its experts have weights in blocks of {experts.block}" if experts.block % _MIN_BLOCK else None


class _Tensors(NamedTuple):
    """The weights of one matrix product of a mixture-of-experts layer, for all experts, read into memory. Each array
    has the dimensions [experts, outputs, …].
    """

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
        """Return the weights of one expert as a matrix. `expert` is its index, and `outputs` selects the outputs; by
        default all.
        """
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
    """Pack the weights of a mixture-of-experts layer, the MoE or QMoE node `node`, and add them to `data`. Returns the
    inputs and the attributes of the PackedExperts node that replaces it.

    `why_not_experts` must return None for the node. `weights` reads the tensors of the graph.
    """
    experts = _read(node)
    node_attributes, bits = experts.given, min(experts.bits)
    second = _load(experts.second, weights, bits, experts.block)
    layer, bias = _first_layer(experts, weights, bits)
    indices = range(len(second.weights))
    form = layer[0]
    attributes: dict[str, Any] = {
        "experts": len(indices),
        "k": node_attributes.get("k", 1),
        "inner": second.num_inputs,
        "normalize_routing_weights": node_attributes.get("normalize_routing_weights", 0),
        "activation": 0 if experts.has_gates else _ACTIVATIONS.index(experts.activation),
    }
    if experts.activation == _SWIGLU:
        attributes |= {
            "alpha": node_attributes.get("activation_alpha", 1.0),
            "beta": node_attributes.get("activation_beta", 0.0),
            "limit": node_attributes.get("swiglu_limit", math.inf),
            "limits_result": node_attributes.get("swiglu_limit_after_activation", 0),
        }
    if isinstance(form, QuantizedMatrix):
        # ONNX Runtime has no products of floats with 8 bits in blocks.
        is_rounded = node_attributes.get("accuracy_level") == _INT8_ACTIVATIONS or (bits == 8 and experts.block > 0)
        attributes |= {"K": form.num_inputs, "bits": form.bits, "block": form.block, "second_block": second.block}
        attributes["activation_bits"] = 8 if is_rounded else 32
    else:
        attributes |= {"K": form.weights.shape[1], "bits": 8 * form.weights.itemsize}
    added = [
        *_add(f"{node.output[0]}.first", several(layer), bias, data),
        *_add(f"{node.output[0]}.second", several([second.matrix(n) for n in indices]), second.bias, data),
    ]
    inputs = [experts.tokens, experts.router, experts.router_weights, *added]
    while not inputs[-1]:
        inputs.pop()
    return inputs, attributes


def _first_layer(experts: _Experts, weights: Weights, bits: int) -> tuple[list[Matrix], NDArray[Any] | None]:
    """Return the matrix of the first layer of each expert, ready to be packed, and the biases [experts, outputs], or
    None if there are none.

    If the experts have gates, groups of 64 outputs of the gate projection and of the up projection alternate in a
    matrix. The outputs of each projection are padded with zeros to a multiple of 64, the number that the kernel
    computes at once. `weights` reads the tensors of the graph, and `bits` is the number of bits of a quantized weight.
    """
    first = _load(experts.first, weights, bits, experts.block)
    indices = range(len(first.weights))
    if not experts.has_gates:
        bias = None if first.bias is None else np.stack([_panels(row) for row in first.bias])
        return [padded_to_panels(first.matrix(n)) for n in indices], bias
    values, (gate_rows, value_rows) = first, (_ALL, _ALL)
    if experts.third.weights:
        values = _load(experts.third, weights, bits, experts.block)
    elif experts.given["swiglu_fusion"] == 1:
        gate_rows, value_rows = slice(0, None, 2), slice(1, None, 2)
    else:
        half = first.weights.shape[1] // 2
        gate_rows, value_rows = slice(half), slice(half, None)
    layer = [
        alternating(padded_to_panels(first.matrix(n, gate_rows)), padded_to_panels(values.matrix(n, value_rows)))
        for n in indices
    ]
    if first.bias is None and values.bias is None:
        return layer, None
    biases = [
        np.zeros((len(indices), layer[0].weights.shape[0] // 2), np.float32)
        if part.bias is None
        else part.bias[:, rows]
        for part, rows in ((first, gate_rows), (values, value_rows))
    ]
    return layer, np.stack([alternate(_panels(gate), _panels(value)) for gate, value in zip(*biases, strict=True)])


def _panels(values: NDArray[Any]) -> NDArray[Any]:
    """Return `values` [outputs] padded with zeros to a multiple of 64 outputs, the number that the kernel computes at
    once.
    """
    padded = padded_to_panels(FloatMatrix(values[:, np.newaxis])).weights
    column: NDArray[Any] = padded[:, 0]
    return column


def _add(name: str, packed: PackedWeights, bias: NDArray[Any] | None, data: DataFile | InlineData) -> list[str]:
    """Add the packed weights of a layer to `data`, and its biases if it has any. Returns the names of the tensors for
    weights, scales, offsets and biases; "" for tensors that the layer does not have.

    `name` is the beginning of the tensors' names.
    """
    arrays = {"packed": packed.weights.reshape(-1), "packed_scales": packed.scales, "packed_offsets": packed.offsets}
    if bias is not None:
        arrays["packed_bias"] = np.ascontiguousarray(bias, np.float32)
    names = {part: data.add({f"{name}.{part}": array})[0] for part, array in arrays.items() if array is not None}
    return [names.get(part, "") for part in ("packed", "packed_scales", "packed_offsets", "packed_bias")]


class _Product(NamedTuple):
    """A product of activations with a constant matrix, which is to be computed by PackedMatMul. It describes a node of
    the original graph.
    """

    activations: str
    matrix: Matrix
    # Bits of the activations: 8 if they are rounded, otherwise 32.
    activation_bits: int
    # The name of the constant that is added; "" if there is none.
    bias: str
    # For each column of the matrix, the index of the input that it belongs to; None if the columns are in the order of
    # the inputs.
    order: NDArray[np.int64] | None


def why_not_packed(graph: onnx.GraphProto) -> str | None:
    """Return the reason why genai-server-native cannot compute all products of activations and weights in a graph; None
    if it can.
    """
    constants = Constants(graph)
    return next((why for node in graph.node if (why := _why_not(node, constants)) is not None), None)


def _why_not(node: onnx.NodeProto, constants: Constants) -> str | None:
    if node.op_type == _QUANTIZED:
        return _why_not_quantized(node, constants)
    if node.op_type in EXPERTS:
        return why_not_experts(node, constants)
    if node.op_type in _FLOAT:
        return _why_not_float(node, constants)
    if node.op_type in _OTHERS and any(map(constants.is_constant, node.input)):
        return f"its operator {node.op_type} is not among those of genai-server-native"
    return None


def _why_not_quantized(node: onnx.NodeProto, constants: Constants) -> str | None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if attributes["bits"] not in _BITS:
        return f"it has weights of {attributes['bits']} bits"
    if attributes["block_size"] % _MIN_BLOCK:
        return f"it has weights in blocks of {attributes['block_size']}"
    if attributes.get("weight_prepacked"):
        return "its weights are in the order of another device"
    inputs = _padded(node, _BIAS + 1)
    types = [constants.kind(inputs[index]) for index in (_WEIGHTS, _SCALES, _ZEROS, _ORDER) if inputs[index]]
    supported = [TensorProto.UINT8, *FLOATS, TensorProto.INT32]
    if any(kind not in supported for kind in types) or types[1] not in FLOATS:
        return f"the weights of {node.name or node.output[0]} are of types that genai-server-native does not know"
    return None


def _why_not_float(node: onnx.NodeProto, constants: Constants) -> str | None:
    left, right = (constants.is_constant(name) for name in node.input[:2])
    if not (left or right) or _is_outer(node, constants):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    why = f"the weights of {node.name or node.output[0]} are of a form that genai-server-native does not know"
    if left or constants.matrix(node.input[1]) is None:
        return why
    if attributes.get("alpha", 1) != 1 or attributes.get("beta", 1) != 1 or attributes.get("transA", 0):
        return why
    bias = node.input[2] if len(node.input) > 2 else ""
    shape, size = constants.matrix_shape(node.input[1]), constants.size(bias) if bias else None
    return why if bias and size != shape[0 if attributes.get("transB", 0) else 1] else None


def _is_outer(node: onnx.NodeProto, constants: Constants) -> bool:
    """Whether a MatMul node is an outer product, such as that of positions and the frequencies of a rope. It sums
    nothing, so it is exact and need not be replaced.
    """
    left, right = (constants.shape(name) for name in node.input[:2])
    return node.op_type == "MatMul" and ((left or (0,))[-1] == 1 or (len(right or ()) > 1 and (right or ())[-2] == 1))


def _padded(node: onnx.NodeProto, number: int) -> list[str]:
    """Return the names of the first `number` inputs of a node. Inputs that the node does not have are ""."""
    return [*node.input, *[""] * (number - len(node.input))]


class PackedProducts:
    """Replaces the products of activations and weights in an ONNX graph with operators of genai-server-native that read
    packed weights.

    `weights` reads the weights of the graph. Packed weights are written to `data`, one matrix after the other. With
    `rounds_floats`, weights with 16 and 32 bits are rounded to 8 bits.
    """

    def __init__(
        self, graph: onnx.GraphProto, weights: Weights, data: DataFile | InlineData, *, rounds_floats: bool = False
    ) -> None:
        self._rounds_floats = rounds_floats
        self._constants = Constants(graph)
        self._weights = weights
        self._data = data

    def is_product(self, node: onnx.NodeProto) -> bool:
        """Whether a node multiplies activations with weights of the graph, so that `replaced` would replace it."""
        if node.op_type in _FLOAT:
            return self._constants.is_constant(node.input[1]) and not _is_outer(node, self._constants)
        return node.op_type == _QUANTIZED or node.op_type in EXPERTS

    def replaced(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Return `nodes`, those of a graph, with operators that read packed weights in place of products. The weights
        are packed and added to the data. Raises DoesNotFit if a product cannot be packed.

        In feed-forward layers with the activation SiLU, the products for the gate and for the values become one
        operator.
        """
        nodes = list(nodes)
        gated = self._find_gated(nodes)
        fused = {id(part) for group in gated.values() for part in group}
        rewritten: list[onnx.NodeProto] = []
        for node in nodes:
            if id(node) in fused:  # only the node that multiplies gate and values reads it
                continue
            group = gated.get(id(node))
            product = None if group is None else self._gated_product(node, group)
            if product is not None:
                rewritten.append(product)
            else:
                for part in (*(group or ()), node):
                    rewritten += self._replaced(part)
        return rewritten

    def _replaced(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        if not self.is_product(node):
            yield node
            return
        if why := _why_not(node, self._constants):
            raise DoesNotFit(why)
        if node.op_type in EXPERTS:
            inputs, attributes = pack_experts(node, self._weights, self._data)
            yield helper.make_node(PACKED_EXPERTS, inputs, node.output, node.name, domain=DOMAIN, **attributes)
            return
        product = self._product(node)
        if product.order is not None:
            (order,) = self._data.add({f"{node.output[0]}.order": product.order})
            ordered = f"{node.output[0]}.ordered"
            yield helper.make_node("Gather", [product.activations, order], [ordered], axis=-1)
            product = product._replace(activations=ordered)
        yield self._node(node.name, product, node.output[0])

    def _product(self, node: onnx.NodeProto) -> _Product:
        if node.op_type == _QUANTIZED:
            return self._quantized_product(node)
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        values = self._constants.values(node.input[1], self._weights)
        by_output = values if attributes.get("transB", 0) else values.T
        bias = node.input[2] if len(node.input) > 2 else ""
        if self._rounds_floats:
            return _Product(node.input[0], rounded(by_output), 8, bias, None)
        return _Product(node.input[0], FloatMatrix(by_output), 32, bias, None)

    def _quantized_product(self, node: onnx.NodeProto) -> _Product:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        inputs = _padded(node, _BIAS + 1)
        bits, block, num_inputs, num_outputs = (
            attributes["bits"],
            attributes["block_size"],
            attributes["K"],
            attributes["N"],
        )
        rows, scales, zeros, order = (self._weights.array(name) for name in inputs[_WEIGHTS:_BIAS])
        assert rows is not None and scales is not None
        rows, scales = rows.reshape(num_outputs, -1), scales.reshape(num_outputs, -1)
        matrix = quantized_matrix(rows, scales, zeros, bits, num_inputs, block)
        permutation = None
        if order is not None and (order[:num_inputs] != np.arange(num_inputs) // block).any():
            permutation = np.argsort(order[:num_inputs], kind="stable")
            if (order[permutation] != np.arange(num_inputs) // block).any():
                raise DoesNotFit(f"the groups of weights of {node.name or node.output[0]} differ in size")
            columns = np.concatenate([permutation, np.arange(num_inputs, matrix.weights.shape[1])])
            matrix = matrix._replace(weights=matrix.weights[:, columns])
        # With an order of its own, ONNX Runtime computes in floats at each level.
        is_rounded = attributes.get("accuracy_level") == _INT8_ACTIVATIONS and order is None
        return _Product(node.input[0], matrix, 8 if is_rounded else 32, inputs[_BIAS], permutation)

    def _gated_product(self, node: onnx.NodeProto, group: "_Gated") -> onnx.NodeProto | None:
        if any(_why_not(part, self._constants) for part in (group.gate, group.values)):
            return None
        gate, values = self._product(group.gate), self._product(group.values)
        if gate.activations != values.activations or gate.activation_bits != values.activation_bits:
            return None
        if gate.bias or values.bias or gate.order is not None or values.order is not None:
            return None
        if not has_same_format(gate.matrix, values.matrix) or len(gate.matrix.weights) % PANEL:
            return None
        both = alternating(gate.matrix, values.matrix)
        return self._node(group.values.name, values._replace(matrix=both), node.output[0], gated=True)

    def _node(self, name: str, product: _Product, output: str, *, gated: bool = False) -> onnx.NodeProto:
        matrix, packed = product.matrix, pack(product.matrix)
        arrays = {
            "packed": packed.weights.reshape(-1),
            "packed_scales": packed.scales,
            "packed_offsets": packed.offsets,
        }
        names = {
            part: self._data.add({f"{output}.{part}": array})[0] for part, array in arrays.items() if array is not None
        }
        inputs = [product.activations, *(names.get(part, "") for part in arrays), product.bias]
        while not inputs[-1]:
            inputs.pop()
        attributes: dict[str, Any] = {"N": len(matrix.weights), "gated": int(gated)}
        if isinstance(matrix, QuantizedMatrix):
            attributes |= {"K": matrix.num_inputs, "block": matrix.block, "bits": matrix.bits}
            attributes["activation_bits"] = product.activation_bits
        else:
            attributes |= {"K": matrix.weights.shape[1], "bits": 8 * matrix.weights.itemsize}
        return helper.make_node(PACKED, inputs, [output], name, domain=DOMAIN, **attributes)

    def _find_gated(self, nodes: list[onnx.NodeProto]) -> Mapping[int, "_Gated"]:
        """Find the feed-forward layers in which values are gated with SiLU, that is, gate * sigmoid(gate) * values.
        Returns the nodes of each layer by `id(node)` of its last node, which multiplies with the values.

        A layer is left out if other nodes read one of its inner values.
        """
        makers = {output: node for node in nodes for output in node.output}
        num_reads: dict[str, int] = {}
        for node in nodes:
            for name in node.input:
                num_reads[name] = num_reads.get(name, 0) + 1

        def made_by(operators: Iterable[str], node: onnx.NodeProto) -> onnx.NodeProto | None:
            matches = [makers[name] for name in node.input if name in makers and makers[name].op_type in operators]
            return matches[0] if len(matches) == 1 else None

        products = (_QUANTIZED, "MatMul")
        matches: dict[int, _Gated] = {}
        for node in nodes:
            if node.op_type != "Mul" or len(node.input) != 2:
                continue
            activation, values = made_by(("Mul",), node), made_by(products, node)
            if activation is None or values is None:
                continue
            sigmoid, gate = made_by(("Sigmoid",), activation), made_by(products, activation)
            if sigmoid is None or gate is None or list(sigmoid.input) != [gate.output[0]]:
                continue
            counts = [num_reads.get(part.output[0], 0) for part in (activation, values, sigmoid, gate)]
            if counts == [1, 1, 1, 2] and self.is_product(gate) and self.is_product(values):
                matches[id(node)] = _Gated(gate, sigmoid, activation, values)
        return matches


class _Gated(NamedTuple):
    """The nodes of a feed-forward layer gated with SiLU, gate * sigmoid(gate) * values, except the last one, which
    multiplies with the values: the product for the gate, the sigmoid, the multiplication of both, and the product for
    the values.
    """

    gate: onnx.NodeProto
    sigmoid: onnx.NodeProto
    activation: onnx.NodeProto
    values: onnx.NodeProto


def write_packed_model(source: Path, target: Path, *, rounds_floats: bool = False) -> None:
    """Read the ONNX graph at `source`, and write it to `target` with operators of genai-server-native in place of
    matrix products. Their packed weights are written to a file next to `target`.

    With `rounds_floats`, weights with 16 and 32 bits are rounded to 8 bits. Only one matrix is in memory at a time.
    Raises OSError, and DoesNotFit if a product cannot be packed.
    """
    model = onnx.load(str(source), load_external_data=False)
    weights = Weights(model.graph, source.parent)
    data_path = target.with_name(target.name + ".data")
    with data_path.open("wb") as file:
        data = DataFile(file, data_path.name)
        for tensor in _pack_products(model, weights, data, rounds_floats=rounds_floats):
            weights.load(tensor)
            data.move(tensor)
    target.write_bytes(model.SerializeToString())


def pack_products(model: onnx.ModelProto, folder: Path) -> None:
    """Replace the matrix products of a model in memory, in place, with operators of genai-server-native, and store
    their packed weights in the model itself.

    Products that are packed already do not change. `folder` has the files with the model's weights. Raises DoesNotFit
    if a product cannot be packed, or the weights are larger than 1 GiB.
    """
    weights, data = Weights(model.graph, folder), InlineData()
    products = PackedProducts(model.graph, weights, data)
    inputs = {name for node in model.graph.node if products.is_product(node) for name in node.input}
    if not inputs:
        _name_domain(model)
        return
    constants = Constants(model.graph)
    if sum(constants.num_bytes(name) for name in inputs) > _MAX_INLINE:
        raise DoesNotFit("packed weights of more than 1 GiB need a file, and none is kept (GENAI_CACHE_DIR)")
    _pack_products(model, weights, data)


def _pack_products(
    model: onnx.ModelProto, weights: Weights, data: DataFile | InlineData, *, rounds_floats: bool = False
) -> list[TensorProto]:
    """Replace the matrix products of a model, in place, with operators of genai-server-native, and add their packed
    weights to `data`. A graph that computes in 16 bits then computes in 32 bits.

    `weights` reads the model's weights. With `rounds_floats`, weights with 16 and 32 bits are rounded to 8 bits.
    Returns the initializers of the original model that the new graph still reads. Raises DoesNotFit if a product cannot
    be packed.
    """
    graph = model.graph
    use_fast_operators(graph)
    widen(graph, weights)
    nodes = PackedProducts(graph, weights, data, rounds_floats=rounds_floats).replaced(graph.node)
    nodes = _without_constant_layouts(graph, nodes, weights, data)
    read_names = {name for node in nodes for name in _reads(node)} | {value.name for value in graph.output}
    inputs = {value.name for value in graph.input}
    initializers = [tensor for tensor in graph.initializer if tensor.name in read_names | inputs]
    replace(graph.node, nodes)
    replace(graph.initializer, [*initializers, *data.tensors])
    _name_domain(model)
    return list(graph.initializer[: len(initializers)])


def _name_domain(model: onnx.ModelProto) -> None:
    if all(entry.domain != DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the values that a node reads, including those read in the subgraphs of its branches."""
    yield from node.input
    for attribute in node.attribute:
        for part in attribute.g.node:
            yield from _reads(part)
        yield from (value.name for value in attribute.g.output)


def _without_constant_layouts(
    graph: onnx.GraphProto, nodes: list[onnx.NodeProto], weights: Weights, data: DataFile | InlineData
) -> list[onnx.NodeProto]:
    """Return `nodes` without those that only transpose or reshape a constant matrix, such as an embedding that is also
    the output head. Their results are added to `data` as weights.

    ONNX Runtime would compute these nodes when a model is loaded, in memory that processes do not share. In a file that
    is mapped into memory, only those parts of an embedding take memory that have been looked up.
    """
    constants = Constants(graph)
    read_names = {name for node in nodes for name in _reads(node)}
    remaining = []
    for node in nodes:
        if constants.is_layout(node):
            if node.output[0] in read_names:
                data.add({node.output[0]: np.ascontiguousarray(constants.values(node.output[0], weights))})
        else:
            remaining.append(node)
    return remaining
