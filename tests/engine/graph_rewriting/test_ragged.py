"""Which graphs can be made ragged, and what the changed graph has."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from genai_server.engine.graph_description import ATTENTION, DoesNotFit
from genai_server.engine.graph_rewriting.native_attention import NATIVE
from genai_server.engine.graph_rewriting.ragged import WANTED, make_ragged
from genai_server.engine.model.graph_reader import read_decoder_graph
from tests.running_server import DEMO

DECODER = read_decoder_graph(DEMO)


@pytest.fixture
def graph() -> onnx.GraphProto:
    return onnx.load(str(DECODER.path), load_external_data=False).graph


def first_attention(graph: onnx.GraphProto) -> onnx.NodeProto:
    found: onnx.NodeProto = next(node for node in graph.node if node.op_type == ATTENTION)
    return found


def test_ragged_graph_has_no_unused_nodes(graph: onnx.GraphProto) -> None:
    make_ragged(graph, DECODER)
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    assert all(read.intersection(node.output) for node in graph.node)
    assert all(value.name in read for value in graph.input)


def test_graph_without_the_states_of_all_positions_does_not_fit(graph: onnx.GraphProto) -> None:
    with pytest.raises(DoesNotFit, match="last token only"):
        make_ragged(graph, replace(DECODER, gives_last_logits_only=True))


def test_selection_of_the_last_position_is_replaced(graph: onnx.GraphProto) -> None:
    head = next(node for node in graph.node if DECODER.logits in node.output)
    graph.initializer.append(helper.make_tensor("last_position", onnx.TensorProto.INT64, [1], [-1]))
    place = list(graph.node).index(head)
    graph.node.insert(place, helper.make_node("Gather", [head.input[0], "last_position"], ["last_states"], axis=1))
    graph.node[place + 1].input[0] = "last_states"
    make_ragged(graph, replace(DECODER, gives_last_logits_only=True))
    assert "last_states" not in {name for node in graph.node for name in node.output}


def test_unknown_output_is_left_out(graph: onnx.GraphProto) -> None:
    graph.node.insert(0, helper.make_node("Cast", [DECODER.attention_mask], ["as_floats"], to=1))
    graph.output.append(helper.make_tensor_value_info("as_floats", 1, ["rows", "length"]))
    make_ragged(graph, DECODER)
    assert "as_floats" not in {value.name for value in graph.output}


def test_graph_whose_mask_is_read_elsewhere_does_not_fit(graph: onnx.GraphProto) -> None:
    first = first_attention(graph)
    graph.node.insert(0, helper.make_node("Cast", [DECODER.attention_mask], ["as_floats"], to=1))
    graph.node.insert(1, helper.make_node("ReduceSum", ["as_floats"], ["sum"], keepdims=0))
    index = list(graph.node).index(first)
    graph.node.insert(index, helper.make_node("Add", [first.input[0], "sum"], ["shifted"]))
    first.input[0] = "shifted"
    with pytest.raises(DoesNotFit, match="attention mask"):
        make_ragged(graph, DECODER)


def test_attention_with_a_bias_does_not_fit(graph: onnx.GraphProto) -> None:
    first = first_attention(graph)
    first.input[:] = [*first.input, *[""] * 10][:10] + ["bias"]
    with pytest.raises(DoesNotFit, match="bias"):
        make_ragged(graph, DECODER)


def test_logits_that_come_from_no_product_are_selected(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Softmax", [DECODER.logits], ["chances"]))
    graph.output.append(helper.make_tensor_value_info("chances", 1, ["rows", "positions", 2]))
    make_ragged(graph, replace(DECODER, logits="chances"))
    (selection,) = (node for node in graph.node if WANTED in node.input)
    assert list(selection.output) == ["chances"]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_slots_have_the_type_of_the_cache(graph: onnx.GraphProto, kind: type) -> None:
    make_ragged(graph, replace(DECODER, cache_type=kind))
    inputs = {value.name: value.type.tensor_type for value in graph.input}
    for name in DECODER.past_names:
        assert inputs[NATIVE + name].elem_type == helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        sizes = [dim.dim_param or dim.dim_value for dim in inputs[NATIVE + name].shape.dim]
        assert sizes == ["slots", DECODER.num_kv_heads, "slot_length", DECODER.head_size]
