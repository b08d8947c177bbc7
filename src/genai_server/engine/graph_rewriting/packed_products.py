"""Replaces a decoder's products with quantized weights by those of genai-server-native, whose weights are packed.

The operator PackedMatMul (native/README.md) rounds activations to 8 bits for each row and block of inputs, as
MatMulNBits does with accuracy level 4, and computes each row bitwise the same next to any others. Its weights lie in
panels of 64 outputs, in the order in which the kernels read them. They are ordinary tensors, so ONNX Runtime maps them
from their file, and nothing is packed when a model is loaded.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from genai_server.engine.decoder_graph import DoesNotFit
from genai_server.engine.graph_rewriting.data_file import DataFile, InlineData
from genai_server.engine.graph_rewriting.groups import replace
from genai_server.engine.graph_rewriting.matrices import Weights

PACKED = "PackedMatMul"
# Outputs of a panel.
PANEL = 64
DOMAIN = "genai_server.native"
_PRODUCT = "MatMulNBits"
# Operators with quantized weights.
QUANTIZED = frozenset(
    {_PRODUCT, "QMoE", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "GatherMatMulNBits"}
)
# Inputs of a MatMulNBits after the activations.
_WEIGHTS, _SCALES, _ZEROS, _ORDER, _BIAS = range(1, 6)
# Accuracy level of activations of 8 bits.
_INT8_ACTIVATIONS = 4
_MIN_BLOCK = 16
# Of all weights in a model itself, which may have 2 GiB.
_MAX_INLINE = 1024**3
# Panels that a thread packs at once.
_PANELS_AT_ONCE = 8


class PackedWeights(NamedTuple):
    """The weights of a PackedMatMul."""

    # uint8, [panels, inputs / 8, 64, 4] with 4 bits and [panels, inputs / 4, 64, 4] with 8.
    weights: NDArray[np.uint8]
    # float32 [panels, blocks, 64].
    scales: NDArray[np.float32]
    # What is added to each weight of a block, float32 [panels, blocks, 64]; None for nothing.
    offsets: NDArray[np.float32] | None


class QuantizedMatrix(NamedTuple):
    """A matrix of quantized weights: scale * (weight - middle) + offset, where the middle is 8 or 128."""

    # Unsigned, uint8 [outputs, blocks * block].
    weights: NDArray[np.uint8]
    # float32 [outputs, blocks].
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32] | None
    bits: int
    num_inputs: int
    block: int


def pack(matrix: QuantizedMatrix) -> PackedWeights:
    """Put weights into panels. Missing outputs of the last panel are zero."""
    num_outputs, num_padded = matrix.weights.shape
    panels, step = -(-num_outputs // PANEL), 32 // matrix.bits
    packed = np.empty((panels, num_padded // step, PANEL, 4), np.uint8)

    def pack_panels(first: int) -> None:
        last = min(first + _PANELS_AT_ONCE, panels)
        rows = matrix.weights[first * PANEL : last * PANEL]
        if len(rows) < (last - first) * PANEL:
            missing = (last - first) * PANEL - len(rows)
            rows = np.concatenate([rows, np.full((missing, num_padded), 1 << (matrix.bits - 1), np.uint8)])
        steps = rows.reshape(last - first, PANEL, num_padded // step, step).transpose(0, 2, 1, 3)
        packed[first:last] = steps[..., :4] | steps[..., 4:] << 4 if matrix.bits == 4 else steps

    with ThreadPoolExecutor(2) as pool:  # numpy computes without Python's lock
        list(pool.map(pack_panels, range(0, panels, _PANELS_AT_ONCE)))
    return PackedWeights(
        packed, _by_panel(matrix.scales), None if matrix.offsets is None else _by_panel(matrix.offsets)
    )


def _by_panel(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values [outputs, blocks] as [panels, blocks, 64]."""
    num_outputs, blocks = values.shape
    full = np.zeros((-(-num_outputs // PANEL) * PANEL, blocks), np.float32)
    full[:num_outputs] = values
    return np.ascontiguousarray(full.reshape(-1, PANEL, blocks).transpose(0, 2, 1))


def why_not_packed(graph: onnx.GraphProto) -> str | None:
    """Why some of a graph's products with quantized weights would remain ONNX Runtime's; None if none would."""
    constants = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in QUANTIZED - {_PRODUCT}:
            return f"its operator {node.op_type} is not among those of genai-server-native"
        if node.op_type != _PRODUCT:
            continue
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if given["bits"] not in (4, 8):
            return f"it has weights of {given['bits']} bits"
        if given["block_size"] % _MIN_BLOCK:
            return f"it has weights in blocks of {given['block_size']}"
        if given.get("accuracy_level") != _INT8_ACTIVATIONS:
            return f"its products have accuracy level {given.get('accuracy_level', 0)}, and not {_INT8_ACTIVATIONS}"
        inputs = [*node.input, *[""] * (_BIAS + 1 - len(node.input))]
        types = [constants.get(inputs[place]) for place in (_WEIGHTS, _SCALES, _ZEROS) if inputs[place]]
        if (
            inputs[_ORDER]
            or None in types
            or types[1] != TensorProto.FLOAT
            or types[2:] not in ([], [TensorProto.UINT8], [TensorProto.FLOAT])
        ):
            return "its weights have an order, or values of types, that genai-server-native does not know"
    return None


def quantized_matrix(node: onnx.NodeProto, weights: Weights) -> QuantizedMatrix:
    """The matrix of a MatMulNBits, of a graph for which `why_not_packed` found no reason."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs = [*node.input, *[""] * (_BIAS + 1 - len(node.input))]
    bits, block, num_inputs, num_outputs = given["bits"], given["block_size"], given["K"], given["N"]
    packed, scales, zeros = (weights.array(inputs[place]) for place in (_WEIGHTS, _SCALES, _ZEROS))
    assert packed is not None and scales is not None
    blocks = -(-num_inputs // block)
    by_output = packed.reshape(num_outputs, blocks * block * bits // 8)
    scales = np.ascontiguousarray(scales.reshape(num_outputs, blocks))
    middle = 1 << (bits - 1)
    offsets = None
    if zeros is not None:
        found = _unpacked_zeros(zeros, num_outputs, blocks, bits)
        if (found != middle).any():
            offsets = (scales * (middle - found)).astype(np.float32)
    return QuantizedMatrix(_unpacked(by_output, bits), scales, offsets, bits, num_inputs, block)


def _unpacked(rows: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The values of rows of bytes; of two values in a byte, the first is in its lower half."""
    if bits == 8:
        return rows
    values = np.empty((len(rows), 2 * rows.shape[1]), np.uint8)
    values[:, 0::2], values[:, 1::2] = rows & 15, rows >> 4
    return values


def _unpacked_zeros(zeros: NDArray[Any], num_outputs: int, blocks: int, bits: int) -> NDArray[np.float32]:
    """Zero points [outputs, blocks]. Each output's begin a new byte, unless they are floats."""
    rows = zeros.reshape(num_outputs, -1)
    if rows.dtype == np.uint8:
        rows = _unpacked(rows, bits)
    return rows[:, :blocks].astype(np.float32)


def has_packed_products_only(graph: onnx.GraphProto) -> bool:
    """Whether all products of a graph with its own weights are packed, or can be."""
    constants = {tensor.name for tensor in graph.initializer}
    others = (QUANTIZED - {_PRODUCT}) | {"MatMul", "Gemm", "MoE"}
    has_others = any(node.op_type in others and constants.intersection(node.input) for node in graph.node)
    return not has_others and why_not_packed(graph) is None


class PackedProducts:
    """Replaces the products of a graph. Their weights go to `data`, one matrix at a time."""

    def __init__(self, weights: Weights, data: DataFile | InlineData) -> None:
        self._weights = weights
        self._data = data
        # Names of tensors that the replaced nodes have read.
        self.dropped: set[str] = set()

    def replaced(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes of a graph with the operators of genai-server-native in place of MatMulNBits.

        The gate and the values of a feed-forward layer with SiLU become one operator.
        """
        nodes = list(nodes)
        gated = _find_gated(nodes)
        fused = {id(part) for group in gated.values() for part in group}
        found: list[onnx.NodeProto] = []
        for node in nodes:
            if id(node) in fused:  # only the node that multiplies gate and values reads it
                continue
            group = gated.get(id(node))
            product = None if group is None else self._gated_product(node, group)
            if product is not None:
                found.append(product)
            else:
                found += [self._product(part) for part in (*(group or ()), node)]
        return found

    def _product(self, node: onnx.NodeProto) -> onnx.NodeProto:
        if node.op_type != _PRODUCT:
            return node
        matrix = quantized_matrix(node, self._weights)
        bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
        self.dropped.update(node.input[_WEIGHTS:_BIAS])
        return self._node(node, matrix, node.output[0], bias)

    def _gated_product(self, product: onnx.NodeProto, group: "_Gated") -> onnx.NodeProto | None:
        if group.gate.input[0] != group.values.input[0] or any(
            len(one.input) > _BIAS for one in (group.gate, group.values)
        ):
            return None
        gate, values = (quantized_matrix(one, self._weights) for one in (group.gate, group.values))
        if len(gate.weights) % PANEL or gate[3:] != values[3:]:
            return None
        if gate.weights.shape != values.weights.shape or (gate.offsets is None) != (values.offsets is None):
            return None
        self.dropped.update([*group.gate.input[1:], *group.values.input[1:]])
        offsets = None
        if gate.offsets is not None and values.offsets is not None:
            offsets = _alternating(gate.offsets, values.offsets)
        both = gate._replace(
            weights=_alternating(gate.weights, values.weights),
            scales=_alternating(gate.scales, values.scales),
            offsets=offsets,
        )
        return self._node(group.values, both, product.output[0], gated=True)

    def _node(
        self, node: onnx.NodeProto, matrix: QuantizedMatrix, output: str, bias: str = "", *, gated: bool = False
    ) -> onnx.NodeProto:
        packed = pack(matrix)
        named: dict[str, NDArray[Any]] = {"packed": packed.weights.reshape(-1), "packed_scales": packed.scales}
        if packed.offsets is not None:
            named["packed_offsets"] = packed.offsets
        names = self._data.add({f"{output}.{name}": array for name, array in named.items()})
        inputs = [node.input[0], *names]
        if bias:
            inputs = [*inputs, *[""] * (4 - len(inputs)), bias]
        return helper.make_node(
            PACKED,
            inputs,
            [output],
            node.name,
            domain=DOMAIN,
            N=len(matrix.weights),
            K=matrix.num_inputs,
            block=matrix.block,
            bits=matrix.bits,
            gated=int(gated),
        )


class _Gated(NamedTuple):
    """The products and the activation of a feed-forward layer with SiLU: gate * sigmoid(gate) * values."""

    gate: onnx.NodeProto
    sigmoid: onnx.NodeProto
    activation: onnx.NodeProto
    values: onnx.NodeProto


def _find_gated(nodes: Iterable[onnx.NodeProto]) -> Mapping[int, _Gated]:
    """The parts of gated layers by the `id` of the node that multiplies gate and values. No other node reads them."""
    nodes = list(nodes)
    makers = {output: node for node in nodes for output in node.output}
    reads: dict[str, int] = {}
    for node in nodes:
        for name in node.input:
            reads[name] = reads.get(name, 0) + 1

    def made_by(operator: str, node: onnx.NodeProto) -> onnx.NodeProto | None:
        found = [makers[name] for name in node.input if name in makers and makers[name].op_type == operator]
        return found[0] if len(found) == 1 else None

    found: dict[int, _Gated] = {}
    for node in nodes:
        if node.op_type != "Mul" or len(node.input) != 2:
            continue
        activation, values = made_by("Mul", node), made_by(_PRODUCT, node)
        if activation is None or values is None:
            continue
        sigmoid, gate = made_by("Sigmoid", activation), made_by(_PRODUCT, activation)
        if sigmoid is None or gate is None or list(sigmoid.input) != [gate.output[0]]:
            continue
        counts = [reads.get(one.output[0], 0) for one in (activation, values, sigmoid, gate)]
        if counts == [1, 1, 1, 2]:
            found[id(node)] = _Gated(gate, sigmoid, activation, values)
    return found


def _alternating(gate: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Panels of 64 outputs [outputs, …] of a gate and of values in turn."""
    panels = [one.reshape(-1, PANEL, *one.shape[1:]) for one in (gate, values)]
    return np.stack(panels, 1).reshape(-1, *gate.shape[1:])


def write_packed_model(source: Path, target: Path) -> None:
    """Write the graph at `source` with packed products. The weights' file lies next to `target`.

    Memory is needed for one matrix before and after. Raises OSError.
    """
    model = onnx.load(str(source), load_external_data=False)
    weights = Weights(model.graph, source.parent)
    data_path = target.with_name(target.name + ".data")
    with data_path.open("wb") as file:
        data = DataFile(file, data_path.name)
        for tensor in _pack_products(model, weights, data):
            weights.load(tensor)
            data.move(tensor)
    target.write_bytes(model.SerializeToString())


def pack_products(model: onnx.ModelProto, folder: Path) -> None:
    """Replace a model's products by packed ones, with the weights in the model itself. Packed ones stay as they are.

    `folder` has the files of its weights. Raises DoesNotFit for more weights than a model can contain.
    """
    products = [node for node in model.graph.node if node.op_type == _PRODUCT]
    if not products:
        return
    sizes = ({attribute.name: attribute.i for attribute in node.attribute} for node in products)
    if sum(given["N"] * given["K"] * given["bits"] // 8 for given in sizes) > _MAX_INLINE:
        raise DoesNotFit("GENAI_CACHE_DIR is empty, and packed weights of more than 1 GiB need a file")
    _pack_products(model, Weights(model.graph, folder), InlineData())


def _pack_products(model: onnx.ModelProto, weights: Weights, data: DataFile | InlineData) -> list[TensorProto]:
    """Replace a model's products; returns the tensors that it keeps."""
    graph = model.graph
    products = PackedProducts(weights, data)
    nodes = products.replaced(graph.node)
    read = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name not in products.dropped or tensor.name in read]
    replace(graph.node, nodes)
    replace(graph.initializer, [*kept, *data.tensors])
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return list(graph.initializer[: len(kept)])
