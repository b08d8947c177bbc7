"""Rewrites the output head of a decoder's graph, which computes logits from the hidden states of the last layer.

In a small model with a large vocabulary, the head has a third of the weights, and of a prompt only the logits after its
last token are needed. Therefore an input of the rewritten graph says for which positions logits are computed.

If logits are in a device's memory, most answers need only the highest logit, or the `top_k` highest. Therefore such a
graph has further outputs with the highest logits, their tokens, and the probability of the best token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from genai_server.engine.scores import NUM_BEST

LAST_POSITIONS = "genai_server.last_positions"
_STATES = "genai_server.read_states"
_PRODUCTS = {"MatMul", "MatMulNBits", "PackedMatMul"}
# Operators that the model builder puts between the product and the logits: casts, scales and Gemma's soft cap.
_ELEMENTWISE = {"Cast", "Div", "Mul", "Tanh"}
# Outputs for the NUM_BEST best tokens of each position: logits, float32 [rows, positions, NUM_BEST], and token ids,
# int64 of the same shape. The highest come first; of equal ones, the lowest token first (ONNX's operator TopK).
BEST_LOGITS, BEST_TOKENS = "genai_server.best_logits", "genai_server.best_tokens"
# The output SHARES, float32 [rows, positions, 1], has the best token's share of softmax(scale · logits). The input
# SCALES, float32 [positions, 1], has the scale of each position, such as 1 / temperature.
SCALES, SHARES = "genai_server.scales", "genai_server.shares"


@dataclass(frozen=True)
class Head:
    """The output head of a graph: the nodes that compute logits from hidden states [rows, positions, hidden_size].

    `states` is the name of the hidden states, and `reader` the node that multiplies them with the head's weights.
    """

    states: str
    # The product that reads the states. Other nodes may read them, too.
    reader: onnx.NodeProto

    def read_through(self, graph: onnx.GraphProto, selection: onnx.NodeProto) -> None:
        """Insert the node `selection` between the hidden states and the head's matrix product.

        Other nodes that read the hidden states are not changed.
        """
        first_reader = next(index for index, node in enumerate(graph.node) if self.states in node.input)
        for position, name in enumerate(self.reader.input):
            if name == self.states:
                self.reader.input[position] = selection.output[0]
        graph.node.insert(first_reader, selection)


def find_head(graph: onnx.GraphProto, logits: str) -> Head | None:
    """Return the output head that computes the graph output `logits`.

    None if the graph has no such head, or if a value between the head's matrix product and the logits is also read by
    other nodes.
    """
    makers: dict[str, onnx.NodeProto] = {output: node for node in graph.node for output in node.output}
    reads = [name for node in graph.node for name in node.input] + [value.name for value in graph.output]
    node = makers.get(logits)
    while node is not None and node.op_type in _ELEMENTWISE:
        node = makers.get(node.input[0])
        if node is not None and reads.count(node.output[0]) > 1:
            return None
    if node is None or node.op_type not in _PRODUCTS or node.input[0] not in makers:
        return None
    return Head(node.input[0], node)


def read_last(graph: onnx.GraphProto, logits: str) -> bool:
    """Make the output head compute the logits of only one position of each row, [rows, 1, vocab_size], in place.

    The new input LAST_POSITIONS, int64 [rows, 1, 2], has for each row its number and the index of this position.
    Returns False, and changes nothing, if the graph has no output head that can be changed.
    """
    head = find_head(graph, logits)
    if head is None:
        return False
    graph.input.append(onnx.helper.make_tensor_value_info(LAST_POSITIONS, onnx.TensorProto.INT64, ["rows", 1, 2]))
    head.read_through(graph, onnx.helper.make_node("GatherND", [head.states, LAST_POSITIONS], [_STATES]))
    return True


def offer_best(graph: onnx.GraphProto, logits: str, excluded: int | None = None) -> None:
    """Add outputs with the NUM_BEST highest logits of each position, which a device computes from the output `logits`.

    BEST_LOGITS and BEST_TOKENS are [rows, positions, NUM_BEST], the highest logit first. SHARES, [rows, positions, 1],
    is the probability of the best token: the softmax of the logits multiplied by the new input SCALES, [positions, 1].
    The token `excluded` is never among the best, unless it is None.
    """
    floats, ints = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64

    def constant(kind: int, *values: float) -> str:
        name = f"{BEST_LOGITS}.constant{len(graph.initializer)}"
        graph.initializer.append(onnx.helper.make_tensor(name, kind, [len(values)], values))
        return name

    def add(operator: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        outputs = outputs or [f"{BEST_LOGITS}.{len(graph.node)}"]
        graph.node.append(onnx.helper.make_node(operator, inputs, outputs, **attributes))
        return outputs[0]

    as_floats, first = add("Cast", logits, to=floats), constant(ints, 0)
    if excluded is not None:
        added = constant(floats, 0.0, -math.inf)
        mask = add("OneHot", constant(ints, excluded), add("Shape", logits, start=-1), added)
        as_floats = add("Add", as_floats, mask)
    add("TopK", as_floats, constant(ints, NUM_BEST), outputs=[BEST_LOGITS, BEST_TOKENS])
    # The difference is scaled, because low temperatures would magnify the rounding of the logits.
    below = add("Sub", as_floats, add("Gather", BEST_LOGITS, first, axis=2))
    shares = add("Softmax", add("Mul", below, SCALES), axis=-1)
    add("GatherElements", shares, add("Gather", BEST_TOKENS, first, axis=2), outputs=[SHARES], axis=2)
    describe = onnx.helper.make_tensor_value_info
    graph.input.append(describe(SCALES, floats, ["positions", 1]))
    for name, kind, number in ((BEST_LOGITS, floats, NUM_BEST), (BEST_TOKENS, ints, NUM_BEST), (SHARES, floats, 1)):
        graph.output.append(describe(name, kind, ["rows", "positions", number]))
