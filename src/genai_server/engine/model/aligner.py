"""Finds out when the tokens of a transcript are spoken, with a part of the decoder's graph.

The builder's graph does not return the weights of its attention to the sound. Here it gets outputs with the products of
queries and keys, for the heads that follow the speech. It reads a transcript at once, without a cache. The graph ends
with the last layer that has such a head, so nothing is loaded of the layers behind it and of the vocabulary's scores.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit
from genai_server.engine.encoded_sound import EncodedSound
from genai_server.engine.model.cross_attention import CROSS_ATTENTION
from genai_server.engine.model.ragged import drop_unread
from genai_server.engine.model.session_options import EXTERNAL_DATA, open_with, session_options
from genai_server.engine.model.speech_files import read_cross_decoder
from genai_server.engine.token_times import token_times
from genai_server.errors import RunnerFailed, in_one_line
from genai_server.json_file import read_object
from genai_server.messages.generation_request import Alignment
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions
from genai_server.options.session import SPINNING
from genai_server.speech_model import GENERATION, TIME_PRECISION

_PREFIX = "genai_server.scores."
# Inputs of a MultiHeadAttention.
_QUERIES, _KEYS = 0, 1
_HEADS = "alignment_heads"


class Aligner:
    """A session of the changed graph, for a directory of which `why_no_times` says nothing."""

    def __init__(self, model_dir: Path, threads: int, options: DeviceOptions = DEFAULT_OPTIONS) -> None:
        decoder = read_cross_decoder(model_dir)
        model = onnx.load(str(decoder.path), load_external_data=False)
        self._outputs = score_heads(model.graph, decoder, alignment_heads(model_dir, decoder))
        found = session_options(options, threads, optimized=False)
        found.add_session_config_entry(SPINNING, "0")
        found.add_session_config_entry(EXTERNAL_DATA, str(decoder.path.parent))
        self._session: Any = open_with(model.SerializeToString(), found, options)
        given = {value.name for value in self._session.get_inputs()}
        shape = (1, decoder.num_kv_heads, 0, decoder.head_size)
        self._empty = {name: np.zeros(shape, decoder.cache_type) for name in decoder.past_names if name in given}
        self._sounds = [state.past for state in decoder.cross_states]
        self._given = given
        self._input_ids = decoder.input_ids

    def times(self, alignment: Alignment, sound: EncodedSound) -> list[float]:
        """The seconds in the window at which each token behind the first `num_before` begins. Raises RunnerFailed."""
        inputs: dict[str, Any] = {self._input_ids: np.array([alignment.tokens], np.int32), **self._empty}
        inputs |= {name: values for name, values in zip(self._sounds, sound.states, strict=True) if name in self._given}
        try:
            found = self._session.run(self._outputs, inputs)
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise RunnerFailed(f"the times of tokens cannot be computed: {in_one_line(error)}") from error
        scores = np.concatenate([each[0] for each in found]).astype(np.float32, copy=False)
        # The token before the text has the weights with which the text's first one is chosen.
        scores = scores[:, alignment.num_before - 1 : -1]
        return token_times(scores, round(alignment.seconds / TIME_PRECISION), TIME_PRECISION)


def why_no_times(model_dir: Path) -> str:
    """Why there can be no Aligner for a checked model directory; "" if there can."""
    try:
        decoder = read_cross_decoder(model_dir)
        graph = onnx.load(str(decoder.path), load_external_data=False).graph
        score_heads(graph, decoder, alignment_heads(model_dir, decoder))
    except DoesNotFit as reason:
        return str(reason)
    return ""


def alignment_heads(model_dir: Path, decoder: DecoderGraph) -> dict[int, list[int]]:
    """The heads that follow the speech, by layers: those of generation_config.json, else all of the last layers' half.

    Raises DoesNotFit for heads that the decoder does not have.
    """
    num_layers = len(decoder.past_names) // 2
    given = read_object(model_dir / GENERATION).get(_HEADS)
    if given is None:
        given = [(layer, head) for layer in range(num_layers // 2, num_layers) for head in range(decoder.num_kv_heads)]
    found: dict[int, list[int]] = {}
    try:
        for layer, head in given:
            if not (0 <= layer < num_layers and 0 <= head < decoder.num_kv_heads):
                raise ValueError
            found.setdefault(layer, []).append(head)
    except (TypeError, ValueError):
        raise DoesNotFit(f"{GENERATION} has {_HEADS} that its decoder does not have") from None
    if not found:
        raise DoesNotFit(f"{GENERATION} has no {_HEADS}")
    return found


def score_heads(graph: onnx.GraphProto, decoder: DecoderGraph, heads: dict[int, list[int]]) -> list[str]:
    """Let a graph return only the scores [1, heads, tokens, frames] of these heads for the sound, float32.

    Returns the names of the outputs, one for each layer. Raises DoesNotFit.
    """
    keys = {state.past: layer for layer, state in enumerate(decoder.cross_states[::2])}
    made: dict[int, list[onnx.NodeProto]] = {}
    for node in graph.node:
        if node.op_type == CROSS_ATTENTION and (layer := keys.get(node.input[_KEYS])) in heads:
            made[layer] = _scores(graph, node, layer, heads[layer], decoder.head_size)
    if missing := sorted(heads.keys() - made.keys()):
        raise DoesNotFit(f"its layer {missing[0]} has no attention to the sound")
    graph.node.extend(node for layer in sorted(made) for node in made[layer])
    names = [f"{_PREFIX}{layer}" for layer in sorted(made)]
    del graph.output[:]
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    drop_unread(graph)
    read = {name for node in graph.node for name in node.input}
    for field in (graph.input, graph.initializer):
        kept = [value for value in field if value.name in read]
        del field[:]
        field.extend(kept)
    del graph.value_info[:]
    return names


def _scores(
    graph: onnx.GraphProto, node: onnx.NodeProto, layer: int, heads: list[int], head_size: int
) -> list[onnx.NodeProto]:
    """Nodes that multiply queries [1, tokens, width] and keys [1, heads, frames, head_size] of some heads."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    name = f"{_PREFIX}{layer}"
    scale = attributes.get("scale", head_size**-0.5)
    constants = {
        "shape": np.array([0, 0, attributes["num_heads"], head_size]),
        "heads": np.array(sorted(heads)),
        "scale": np.float32(scale),
    }
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), f"{name}.{key}") for key, value in constants.items()
    )

    def apply(kind: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        inputs = [each.replace("~", f"{name}.") for each in inputs]
        return helper.make_node(kind, inputs, [f"{name}{output}"], **attributes)

    return [
        apply("Cast", [node.input[_QUERIES]], ".queries", to=TensorProto.FLOAT),
        apply("Reshape", ["~queries", "~shape"], ".split"),
        apply("Gather", ["~split", "~heads"], ".chosen", axis=2),
        apply("Transpose", ["~chosen"], ".rows", perm=[0, 2, 1, 3]),
        apply("Gather", [node.input[_KEYS], "~heads"], ".keys", axis=1),
        apply("Cast", ["~keys"], ".cast", to=TensorProto.FLOAT),
        apply("Transpose", ["~cast"], ".columns", perm=[0, 1, 3, 2]),
        apply("MatMul", ["~rows", "~columns"], ".products"),
        apply("Mul", ["~products", "~scale"], ""),
    ]
