"""Attention to sounds in a ragged graph."""

from onnx import helper

from genai_server.engine.graph_rewriting.cross_attention import CROSS_ATTENTION, split_cross_attention
from genai_server.engine.graph_rewriting.groups import NARROW, WIDE


def test_other_outputs_of_an_attention_to_sounds_are_left_out() -> None:
    node = helper.make_node(CROSS_ATTENTION, ["queries", "keys", "values"], ["out", "", "", "scores"])
    found = [list(made.output) for made in split_cross_attention(node) if made.op_type == CROSS_ATTENTION]
    assert found == [[f"{NARROW}out"], [f"{WIDE}out"]]
