"""Describes the encoder and the decoder of a speech recognition model by its files.

The decoder is described in the form to which engine/graph_rewriting/cross_attention.py rewrites it: with positions as
an input, and the keys and values of the encoded audio as states of each row.
"""

from dataclasses import dataclass
from pathlib import Path

import onnx

from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.cross_attention import POSITIONS, find_positions
from genai_server.engine.graph_rewriting.packed_products import why_not_packed
from genai_server.engine.model.files import read_config
from genai_server.engine.model.graph import float_type, layer_states


@dataclass(frozen=True)
class EncoderFiles:
    """The graph that encodes audio into keys and values for cross-attention."""

    path: Path
    # The input [1, mels, frames].
    features: str
    # The outputs [1, heads, …, head_size], in the order of `DecoderGraph.cross_states`.
    presents: tuple[str, ...]


def read_encoder_files(model_dir: Path) -> EncoderFiles:
    """Description of the encoder in a checked model directory of a speech recognition model."""
    encoder = read_config(model_dir)["model"]["encoder"]
    inputs, outputs = encoder.get("inputs", {}), encoder.get("outputs", {})
    layers = range(int(read_config(model_dir)["model"]["decoder"]["num_hidden_layers"]))
    parts = [outputs.get(f"cross_present_{part}_names", f"present_{part}_cross_%d") for part in ("key", "value")]
    presents = tuple(part % layer for layer in layers for part in parts)
    return EncoderFiles(model_dir / encoder["filename"], inputs.get("audio_features", "audio_features"), presents)


def read_cross_decoder(model_dir: Path) -> DecoderGraph:
    """Description of the decoder in a checked model directory of a speech recognition model. Raises DoesNotFit.

    It describes the graph after `use_known_operators` has rewritten it.
    """
    decoder = read_config(model_dir)["model"]["decoder"]
    graph = onnx.load(str(model_dir / decoder["filename"]), load_external_data=False).graph
    inputs = {value.name: value.type.tensor_type for value in graph.input}
    outputs = {value.name: value.type.tensor_type for value in graph.output}
    given, made = decoder.get("inputs", {}), decoder.get("outputs", {})
    layers = range(int(decoder["num_hidden_layers"]))

    def names(found: dict[str, str], key: str, default: str) -> tuple[str, ...]:
        patterns = [found.get(key % part, default % part) for part in ("key", "value")]
        return tuple(pattern % layer for layer in layers for pattern in patterns)

    past = names(given, "past_%s_names", "past_%s_self_%%d")
    present = names(made, "present_%s_names", "present_%s_self_%%d")
    cross = names(given, "cross_past_%s_names", "past_%s_cross_%%d")
    input_ids, logits = given.get("input_ids", "input_ids"), made.get("logits", "logits")
    if inputs.keys() != {input_ids, *past, *cross}:
        raise DoesNotFit(f"its graph has other inputs than tokens, keys and values: {', '.join(sorted(inputs))}")
    if missing := sorted({logits, *present} - outputs.keys()):
        raise DoesNotFit(f"its graph lacks {', '.join(missing)}")
    kind = inputs[past[0]].elem_type
    cross_states = layer_states([(name, "") for name in cross], inputs)
    if any(len(state.shape) != 3 for state in cross_states):
        raise DoesNotFit("its keys and values of sounds have an unknown form")
    find_positions(graph)
    return DecoderGraph(
        path=model_dir / decoder["filename"],
        input_ids=input_ids,
        attention_mask="",
        position_ids=POSITIONS,
        logits=logits,
        past_names=past,
        present_names=present,
        num_kv_heads=inputs[past[0]].shape.dim[1].dim_value,
        head_size=inputs[past[0]].shape.dim[3].dim_value,
        cache_type=float_type("cache", kind),
        logits_type=float_type("logits", outputs[logits].elem_type),
        cross_states=cross_states,
        has_packed_products_only=why_not_packed(graph) is None,
    )
