"""Which attentions become paged ones, and with which inputs and attributes."""

from typing import Any

import onnx
import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from genai_server.engine.graph_description import ATTENTION, DoesNotFit
from genai_server.engine.graph_rewriting.paged_attention import BLOCKS, BOUNDS, OPERATOR, PAGED, PASTS, STARTS, to_paged
from tests.engine.graph_rewriting.attention_node import attention

SINK, BIAS, POSITIONS = 11, 10, 9


def paged(node: onnx.NodeProto) -> onnx.NodeProto:
    """The paged attention that replaces a node."""
    (found,) = [made for made in to_paged(node) if made.op_type == OPERATOR]
    return found


def names(operator: str) -> list[str]:
    """The names of an operator's inputs."""
    return [value.name for schema in get_all_operator_schema() if schema.name == operator for value in schema.inputs]


def test_inputs_have_the_places_of_the_operator() -> None:
    more = [(SINK, "head_sink"), (12, "k_scale"), (13, "v_scale"), (14, "q_norm_weight"), (15, "k_norm_weight")]
    found = dict(zip(names(OPERATOR), paged(attention(*more)).input, strict=True))
    own = {name: found.pop(name) for _, name in more}
    assert all(name == value for name, value in own.items())
    assert [names(ATTENTION)[place] for place, _ in more] == list(own)
    assert found == {
        "query": "out.0",
        "key": "out.1",
        "value": "out.2",
        "key_cache": f"{PAGED}past.k",
        "value_cache": f"{PAGED}past.v",
        "cumulative_sequence_length": STARTS,
        "past_seqlens": PASTS,
        "block_table": BLOCKS,
        "cos_cache": "cos",
        "sin_cache": "sin",
        "slot_mapping": "",
        "attention_metadata": BOUNDS,
    }


def test_attributes_of_both_are_kept_and_others_left_out() -> None:
    kept = {"scale": 0.5, "softcap": 30.0, "local_window_size": 512, "do_rotary": 1, "rotary_interleaved": 1}
    found = paged(attention(**kept, smooth_softmax=-1, sliding_window_cache=1, causal=1))
    assert {a.name: helper.get_attribute_value(a) for a in found.attribute} == kept | {
        "num_heads": 4,
        "kv_num_heads": 2,
    }


@pytest.mark.parametrize(
    ("more", "attributes", "why"),
    [
        ([(BIAS, "bias")], {}, "has a bias"),
        ([(POSITIONS, "places")], {}, "is given positions"),
        ([], {"smooth_softmax": 1}, "has smooth_softmax=1"),
        ([], {"causal": 0}, "has causal=0"),
        ([(SINK, "sink")], {"causal": 0}, "has causal=0"),
        ([], {"q_norm_epsilon": 1e-5}, "has q_norm_epsilon"),
    ],
)
def test_what_the_operator_computes_otherwise_is_refused(
    more: list[tuple[int, str]], attributes: dict[str, Any], why: str
) -> None:
    with pytest.raises(DoesNotFit, match=why):
        to_paged(attention(*more, **attributes))


def test_a_sink_implies_its_softmax() -> None:
    found = paged(attention((SINK, "sink"), smooth_softmax=1))
    assert "smooth_softmax" not in {attribute.name for attribute in found.attribute}
