"""Which graphs can decode and read a chunk in one pass."""

from dataclasses import replace

import onnx

from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.mixed_step import CHUNK, DECODE, ROWS, SPLIT, mix_steps
from tests.running_server import DEMO

DECODER = read_decoder_graph(DEMO)


def _graph() -> onnx.GraphProto:
    return onnx.load(str(DECODER.path), load_external_data=False).graph


def _attentions(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == "GroupQueryAttention"]


def test_mixed_graph_has_two_attentions_with_caches_for_each() -> None:
    before, graph = _graph(), _graph()
    assert mix_steps(graph, DECODER)
    assert len(_attentions(graph)) == 2 * len(_attentions(before))
    inputs = {value.name for value in graph.input}
    assert {DECODER.input_ids, SPLIT, ROWS} <= inputs
    assert DECODER.attention_mask not in inputs
    assert {part + name for part in (DECODE, CHUNK) for name in DECODER.past_names} <= inputs
    made = {value.name for value in graph.output}
    assert made == {DECODER.logits, *(part + name for part in (DECODE, CHUNK) for name in DECODER.present_names)}


def test_mixed_graph_has_no_unused_nodes() -> None:
    graph = _graph()
    mix_steps(graph, DECODER)
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    assert all(read.intersection(node.output) for node in graph.node)
    assert all(value.name in read for value in graph.input)


def test_a_graph_that_gives_the_last_logits_only_cannot() -> None:
    assert not mix_steps(_graph(), replace(DECODER, gives_last_logits_only=True))


def test_a_graph_whose_mask_is_read_elsewhere_cannot() -> None:
    graph = _graph()
    graph.node.insert(0, onnx.helper.make_node("Cast", [DECODER.attention_mask], ["as_floats"], to=1))
    graph.output.append(onnx.helper.make_tensor_value_info("as_floats", 1, ["rows", "length"]))
    wanted = [*graph.output]
    assert mix_steps(graph, DECODER)  # an output that the runner does not know is left out
    assert len(wanted) != len(graph.output)
    graph = _graph()
    first = _attentions(graph)[0]
    graph.node.insert(0, onnx.helper.make_node("Cast", [DECODER.attention_mask], ["as_floats"], to=1))
    graph.node.insert(1, onnx.helper.make_node("ReduceSum", ["as_floats"], ["sum"], keepdims=0))
    index = list(graph.node).index(first)
    graph.node.insert(index, onnx.helper.make_node("Add", [first.input[0], "sum"], ["shifted"]))
    first.input[0] = "shifted"
    assert not mix_steps(graph, DECODER)


def test_graph_with_positions_per_row_cannot_be_mixed() -> None:
    graph = _graph()
    first = _attentions(graph)[0]
    first.input[:] = [*first.input, *[""] * 10][:9] + ["positions"]
    assert not mix_steps(graph, DECODER)


def test_a_graph_whose_logits_come_from_no_product_cannot() -> None:
    graph = _graph()
    graph.node.append(onnx.helper.make_node("Softmax", [DECODER.logits], ["chances"]))
    assert not mix_steps(graph, replace(DECODER, logits="chances"))
