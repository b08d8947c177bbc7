"""Which attentions become those of genai-server-native, and with which inputs and attributes."""

from dataclasses import replace
from typing import Any

import onnx
import pytest
from onnx import helper

from genai_server.engine.graph_description import DoesNotFit
from genai_server.engine.graph_rewriting.cross_attention import CROSS_ATTENTION
from genai_server.engine.graph_rewriting.native_attention import (
    NATIVE,
    PASTS,
    SLOTS,
    STARTS,
    to_native,
    to_native_cross,
)
from genai_server.engine.model.graph_reader import read_cross_decoder, read_decoder_graph
from tests.engine.graph_rewriting.attention_node import attention
from tests.engine.hybrids import BUILT
from tests.running_server import DEMO

DECODER = read_decoder_graph(DEMO)
SPEECH = read_cross_decoder(BUILT / "whisper")
BIAS, POSITIONS, SINK, KEY_SCALE, QUERY_NORM, KEY_NORM = 10, 9, 11, 12, 14, 15
SOUND = [state.past for state in SPEECH.cross_states[:2]]


def to_sound(*more: tuple[int, str], **attributes: Any) -> onnx.NodeProto:
    """A MultiHeadAttention to a sound, with other outputs that nothing reads."""
    inputs = ["q", *SOUND, *[""] * 5]
    for place, name in more:
        inputs[place] = name
    outputs = ["out", "", "", "scores"]
    return helper.make_node(CROSS_ATTENTION, inputs, outputs, "s", domain="com.microsoft", num_heads=2, **attributes)


def given(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def test_places_in_the_rope_sinks_and_norms_are_kept() -> None:
    more = [(POSITIONS, "places"), (SINK, "sinks"), (QUERY_NORM, "of_queries"), (KEY_NORM, "of_keys")]
    found = to_native(attention(*more, do_rotary=1), DECODER)
    assert list(found.input)[8:] == ["cos", "sin", "places", "sinks", "of_queries", "of_keys"]


@pytest.mark.parametrize("attributes", [{}, {"do_rotary": 0}])
def test_what_was_rotated_before_is_not_rotated_again(attributes: dict[str, int]) -> None:
    found = to_native(attention((POSITIONS, "places"), **attributes), DECODER)
    assert list(found.input)[8:11] == ["", "", ""]


def test_attributes_of_both_are_kept_and_others_left_out() -> None:
    kept = {"scale": 0.5, "softcap": 30.0, "local_window_size": 512, "rotary_interleaved": 1}
    found = to_native(attention(**kept, do_rotary=1, smooth_softmax=-1, sliding_window_cache=1, causal=1), DECODER)
    assert given(found) == kept | {"num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize(
    ("more", "attributes", "why"),
    [
        ([(BIAS, "bias")], {}, "has a bias"),
        ([(KEY_SCALE, "scales")], {}, "are quantized"),
        ([], {"smooth_softmax": 1}, "has smooth_softmax=1"),
        ([], {"causal": 0}, "has causal=0"),
    ],
)
def test_what_the_operator_computes_otherwise_is_refused(
    more: list[tuple[int, str]], attributes: dict[str, Any], why: str
) -> None:
    with pytest.raises(DoesNotFit, match=why):
        to_native(attention(*more, **attributes), DECODER)


def test_attention_to_a_sound_reads_all_of_its_slot_and_writes_nothing() -> None:
    found = to_native_cross(to_sound(scale=0.25), SPEECH)
    slots = [NATIVE + name for name in SOUND]
    assert list(found.input) == ["q", "", "", *slots, STARTS, PASTS, SLOTS]
    assert list(found.output) == ["out"]
    assert given(found) == {"num_heads": 2, "kv_num_heads": 2, "causal": 0, "scale": 0.25}


@pytest.mark.parametrize(
    ("more", "attributes"), [([(3, "bias")], {}), ([(1, "keys")], {}), ([], {"unidirectional": 1})]
)
def test_another_attention_to_sounds_is_refused(more: list[tuple[int, str]], attributes: dict[str, int]) -> None:
    with pytest.raises(DoesNotFit, match="attention to audio"):
        to_native_cross(to_sound(*more, **attributes), SPEECH)


def test_attention_multiplies_bfloat16_where_the_decoder_says_so() -> None:
    found = to_native(attention(do_rotary=1), replace(DECODER, has_bf16_attention=True))
    assert given(found)["bf16"] == 1
    assert "bf16" not in given(to_native(attention(do_rotary=1), DECODER))
