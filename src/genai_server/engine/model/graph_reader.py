"""Reads descriptions of the graphs in a model directory: the decoder (`read_decoder_graph`, for speech recognition
`read_cross_decoder`), and the graphs that encode images and audio (`read_vision_files`, `read_encoder_files`).

A decoder must have a certain form to run in a batch; if it has not, DoesNotFit has the reason. The decoder of a speech
recognition model is described as it is after engine/graph_rewriting/cross_attention.py has rewritten it. A model that
reads images or audio in chats has a vision or speech graph, which returns features [features, hidden_size], and an
embedding graph, which returns the embeddings of tokens with features in place of image tokens.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from genai_server.engine.graph_description import (
    ATTENTION,
    DecoderGraph,
    DoesNotFit,
    LayerState,
    VisionFiles,
    local_window,
)
from genai_server.engine.graph_rewriting.cross_attention import POSITIONS, find_positions
from genai_server.engine.graph_rewriting.lora import find_paths
from genai_server.engine.graph_rewriting.packed_products import why_not_packed
from genai_server.engine.model.adapter_file import optional_inputs
from genai_server.engine.model.files import CONFIG, read_config
from genai_server.model_files.speech_and_vision import Medium, read_vision_model

# The part of a configuration that describes a head for multi-token prediction.
MTP = "mtp"
_OTHER_ATTENTION = {"Attention", "MultiHeadAttention", "PagedAttention", "SparseAttention"}
# Maximum number of names in a message.
_SHOWN = 4
# The operators between the attention mask and the condition of an If.
_WIDTH_IS_GREATER = ["Greater", "Gather", "Shape"]
_CACHE_TYPES = {onnx.TensorProto.FLOAT: np.float32, onnx.TensorProto.FLOAT16: np.float16}


def read_decoder_graph(model_dir: Path, part: str = "decoder") -> DecoderGraph:
    """Return the description of the decoder's graph of the model in `model_dir`: the names of its inputs and outputs,
    and the shapes of its KV cache and states. Weights are not read.

    `part` is the section of genai_config.json that names the graph: that of the decoder, or that of a head for
    multi-token prediction, which has the form of a decoder. Raises DoesNotFit, with the reason, if the graph cannot run
    in a batch.
    """
    config = read_config(model_dir)
    decoder = config["model"][part]
    if not (config.get("search") or {}).get("past_present_share_buffer", False):
        raise DoesNotFit("its cache is not kept in place (past_present_share_buffer is false)")
    if "pipeline" in decoder:
        raise DoesNotFit("its decoder is a pipeline")
    window = decoder.get("sliding_window")
    if window is not None and (window.get("slide_key_value_cache", True) or window.get("slide_inputs", True)):
        raise DoesNotFit("its prompt is read window by window by onnxruntime-genai")
    graph = onnx.load(str(model_dir / decoder["filename"]), load_external_data=False).graph
    _check_operators(graph)
    inputs = {value.name: value.type.tensor_type for value in graph.input}
    outputs = {value.name: value.type.tensor_type for value in graph.output}
    input_names, output_names = decoder.get("inputs", {}), decoder.get("outputs", {})
    ids, embeddings, mask, position_ids = (
        input_names.get(name, name) for name in ("input_ids", "inputs_embeds", "attention_mask", "position_ids")
    )
    takes_ids = embeddings not in inputs
    input_ids, logits = ids if takes_ids else embeddings, output_names.get("logits", "logits")
    past, present, conv_states, recurrent_states = _layer_names(decoder, inputs)
    states = dict((*conv_states, *recurrent_states))
    needed_inputs = {input_ids, mask, *past, *states}
    optional = optional_inputs(graph).keys() - needed_inputs - {position_ids}
    hidden_input, hidden_output = (
        name if (name := named.get("hidden_states", "")) in available else ""
        for named, available in ((input_names, inputs), (output_names, outputs))
    )
    if unknown := sorted(set(inputs) - needed_inputs - optional - {position_ids, hidden_input}):
        raise DoesNotFit(f"its graph has inputs that the runner does not know: {_some(unknown)}")
    if missing := sorted((needed_inputs - set(inputs)) | ({logits, *present, *states.values()} - set(outputs))):
        raise DoesNotFit(f"its graph lacks {_some(missing)}")
    vision = None if takes_ids else read_vision_files(model_dir)
    if not takes_ids and vision is None:
        raise DoesNotFit(f"its graph takes embeddings, and {CONFIG} names no graph that makes them of tokens")
    if vision is not None and vision.has_adapter:
        raise DoesNotFit("it reads images with an adapter, which rows of a batch would share")
    for name in (*([ids] if takes_ids else []), mask, position_ids):
        if name in inputs and inputs[name].elem_type != onnx.TensorProto.INT64:
            raise DoesNotFit(f"its input {name} is not of type INT64")
    num_kv_heads, head_size = _cache_shape(decoder, [inputs[name].shape.dim for name in past])
    position_ids = position_ids if position_ids in inputs else None
    return DecoderGraph(
        path=model_dir / decoder["filename"],
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=position_ids,
        logits=logits,
        past_names=past,
        present_names=present,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        cache_type=float_type("cache", inputs[past[0]].elem_type),
        logits_type=float_type("logits", outputs[logits].elem_type),
        vision=vision,
        window=max((local_window(node) for node in graph.node if _keeps_window(node)), default=0),
        switches_at=_switch(graph, mask),
        gives_last_logits_only=outputs[logits].shape.dim[1].dim_value == 1,
        low_rank_paths=find_paths(graph, optional),
        conv_states=_conv_states(conv_states, inputs),
        recurrent_states=layer_states(recurrent_states, inputs),
        position_axes=0 if position_ids is None else _position_axes(inputs[position_ids].shape.dim),
        hidden_input=hidden_input,
        hidden_output=hidden_output,
        hidden_size=outputs[hidden_output].shape.dim[2].dim_value if hidden_output else 0,
        has_packed_products_only=why_not_packed(graph) is None,
    )


def has_head(model_dir: Path) -> bool:
    """Whether a model directory has a head for multi-token prediction (MTP), a layer that drafts tokens, and
    genai_config.json does not disable it.
    """
    if not (model_dir / CONFIG).is_file():
        return False
    head = read_config(model_dir)["model"].get(MTP) or {}
    return bool(head.get("enabled", True) and (model_dir / str(head.get("filename", ""))).is_file())


def rope_switch(model_dir: Path) -> int | None:
    """Return the number of tokens up to which a model uses the short factors of its rope (rotary position embedding);
    longer sequences use the long factors.

    Returns None if the rope does not have short and long factors, or the graph has another form than the model builder
    writes. The graph need not be one that can run in a batch.
    """
    decoder = read_config(model_dir)["model"]["decoder"]
    if "filename" not in decoder:
        return None
    graph = onnx.load(str(model_dir / decoder["filename"]), load_external_data=False).graph
    try:
        return _switch(graph, decoder.get("inputs", {}).get("attention_mask", "attention_mask"))
    except DoesNotFit:
        return None


def _some(names: list[str]) -> str:
    """Return a text for error messages with the first few of `names` and the number of the others, because a graph may
    have hundreds of inputs.
    """
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


# Of past and present.
Pairs = tuple[tuple[str, str], ...]


def _layer_names(
    decoder: dict[str, Any], graph_inputs: Container[str]
) -> tuple[tuple[str, ...], tuple[str, ...], Pairs, Pairs]:
    """Return the names of a decoder's inputs and outputs for what its layers keep between passes, in four groups: the
    inputs of the KV cache, its outputs, and pairs of an input and an output for the states of convolutions and for the
    states of linear attention.

    `decoder` is the section of genai_config.json with the patterns of these names, for which onnxruntime-genai has
    defaults. A layer that has a state among `graph_inputs`, the names of the graph's inputs, has no KV cache.
    """
    inputs, outputs = decoder.get("inputs", {}), decoder.get("outputs", {})
    parts = [
        (
            inputs.get(f"past_{part}_names", f"past_key_values.%d.{part}"),
            outputs.get(f"present_{part}_names", f"present.%d.{part}"),
        )
        for part in ("key", "value")
    ]
    layers = range(int(decoder["num_hidden_layers"]))

    def states(kind: str) -> dict[int, tuple[str, str]]:
        past, after = inputs.get(f"past_{kind}_names"), outputs.get(f"present_{kind}_names")
        return {
            layer: (past % layer, after % layer) for layer in layers if past and after and past % layer in graph_inputs
        }

    conv, recurrent = states("conv"), states("recurrent")
    attending = [layer for layer in layers if layer not in conv and layer not in recurrent]
    past, present = (tuple(part[side] % layer for layer in attending for part in parts) for side in (0, 1))
    return past, present, tuple(conv.values()), tuple(recurrent.values())


def layer_states(names: Iterable[tuple[str, str]], inputs: Mapping[str, Any]) -> tuple[LayerState, ...]:
    """Return descriptions of the states that layers keep between passes. `names` has the input and the output of each
    state, and `inputs` has the types and shapes of the graph's inputs by name.

    Raises DoesNotFit unless each state has a fixed size.
    """
    states = []
    for past, present in names:
        shape = tuple(int(dim.dim_value) for dim in inputs[past].shape.dim[1:])
        if not all(shape):
            raise DoesNotFit(f"its state {past} has no fixed size")
        states.append(LayerState(past, present, shape, float_type("state", inputs[past].elem_type)))
    return tuple(states)


def _conv_states(names: Pairs, inputs: Mapping[str, Any]) -> tuple[LayerState, ...]:
    """Return descriptions of the states of convolutions, whose shape is [channels, width - 1] in the graph and [width -
    1, channels] in the descriptions. `names` has the input and the output of each state, and `inputs` has the types and
    shapes of the graph's inputs by name.

    Raises DoesNotFit unless all convolutions have the same width.
    """
    states = layer_states(names, inputs)
    if any(len(state.shape) != 2 or state.shape[1] != states[0].shape[1] for state in states):
        raise DoesNotFit("its convolutions have states of several forms")
    return tuple(replace(state, shape=state.shape[::-1]) for state in states)


def _position_axes(shape: Any) -> int:
    """Return the number of axes of a graph's positions, such as time, height and width of images: the first dimension
    of `shape` if that is [axes, rows, tokens], or 0 if it is [rows, tokens].

    Raises DoesNotFit for other shapes.
    """
    if len(shape) == 2:
        return 0
    if len(shape) != 3 or not shape[0].dim_value:
        raise DoesNotFit(f"its positions have {len(shape)} dimensions of a form that the runner does not know")
    return int(shape[0].dim_value)


def float_type(what: str, element: "onnx.TensorProto.DataType") -> Any:
    """Return the numpy type, float32 or float16, for an ONNX element type. Raises DoesNotFit for any other type; `what`
    is the noun for the value in the message.
    """
    if element not in _CACHE_TYPES:
        raise DoesNotFit(f"its {what} is of type {onnx.TensorProto.DataType.Name(element)}")
    return _CACHE_TYPES[element]


def _check_operators(graph: onnx.GraphProto) -> None:
    operators = {node.op_type for node in graph.node}
    if ATTENTION not in operators:
        raise DoesNotFit(f"its attention is not {ATTENTION}")
    if unsupported := sorted(operators & _OTHER_ATTENTION):
        raise DoesNotFit(f"its attention is partly {', '.join(unsupported)}")


def _cache_shape(decoder: dict[str, Any], shapes: list[Any]) -> tuple[int, int]:
    """Return the number of key-value heads and the head size of a decoder's KV cache.

    `decoder` is the section of genai_config.json, and `shapes` are the shapes of the KV cache's inputs. Raises
    DoesNotFit if layers differ in them.
    """
    heads = int(decoder.get("num_key_value_heads", shapes[0][1].dim_value))
    size = int(decoder.get("head_size", shapes[0][3].dim_value))
    # A named dimension has the value 0.
    if any(shape[1].dim_value not in (0, heads) or shape[3].dim_value not in (0, size) for shape in shapes):
        raise DoesNotFit("its layers' caches differ in shape")
    return heads, size


def _keeps_window(node: onnx.NodeProto) -> bool:
    return any(a.name == "sliding_window_cache" and a.i for a in node.attribute)


def _switch(graph: onnx.GraphProto, attention_mask: str) -> int | None:
    """Return the number of tokens in a row up to which a graph uses the short factors of its rope (rotary position
    embedding); None if the graph does not branch by that.

    For a rope with short and long factors, the model builder writes a branch by which a single long row of a batch
    makes all rows use the long factors. The input `attention_mask` tells the branch how long the rows are. Raises
    DoesNotFit for any other branch.
    """
    makers = {output: node for node in graph.node for output in node.output}
    constants = {value.name: value for value in graph.initializer}
    constants |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}

    def scalar(name: str) -> int | None:
        tensor = constants.get(name)
        if tensor is None or tensor.data_type != onnx.TensorProto.INT64 or tensor.external_data:
            return None
        value = onnx.numpy_helper.to_array(tensor)
        return int(value.item()) if value.size == 1 else None

    limits: list[int] = []
    for branch in (node for node in graph.node if node.op_type == "If"):
        path, name = [], branch.input[0]
        while name in makers and makers[name].input:
            path.append(makers[name])
            name = path[-1].input[0]
        limit = None
        if [node.op_type for node in path] == _WIDTH_IS_GREATER and name == attention_mask:
            limit = scalar(path[0].input[1]) if scalar(path[1].input[1]) == 1 else None
        if limit is None or any(node.op_type != "Constant" for a in branch.attribute for node in a.g.node):
            raise DoesNotFit("its graph branches, so that the rows of a batch might depend on each other")
        limits.append(limit)
    return min(limits, default=None)


# The library's default.
_MERGE_SIZE = 2


def read_vision_files(model_dir: Path) -> VisionFiles | None:
    """Return the description of a model's graphs for images or audio in chats, the encoder and the embedding graph;
    None if the model reads only text. `check_model_directory` must have accepted the directory.
    """
    vision_model = read_vision_model(model_dir)
    if vision_model is None:
        return None
    model = read_config(model_dir)["model"]
    has_audio = vision_model.medium is Medium.AUDIO
    vision, embedding = model["speech" if has_audio else "vision"], model["embedding"]
    parts = [part.get(kind) or {} for part in (vision, embedding) for kind in ("inputs", "outputs")]
    names = {name: graph_name for part in parts for name, graph_name in part.items()}
    return VisionFiles(
        model_dir / vision["filename"],
        model_dir / embedding["filename"],
        vision_model.image_token_id,
        int(model["decoder"]["hidden_size"]),
        has_audio,
        merge_size=int(vision.get("spatial_merge_size", _MERGE_SIZE)),
        has_adapter="adapter_filename" in vision,
        names=names,
    )


@dataclass(frozen=True)
class EncoderFiles:
    """Description of the audio encoder of a speech recognition model: its graph's path and the names of its input and
    outputs. The outputs are the keys and values to which the decoder's cross-attention attends. `read_encoder_files`
    returns it.
    """

    path: Path
    # The input [1, mels, frames].
    features: str
    # The outputs [1, heads, …, head_size], in the order of `DecoderGraph.cross_states`.
    presents: tuple[str, ...]


def read_encoder_files(model_dir: Path) -> EncoderFiles:
    """Return the description of the audio encoder of the speech recognition model in `model_dir`, which
    `check_model_directory` must have accepted.
    """
    encoder = read_config(model_dir)["model"]["encoder"]
    inputs, outputs = encoder.get("inputs", {}), encoder.get("outputs", {})
    layers = range(int(read_config(model_dir)["model"]["decoder"]["num_hidden_layers"]))
    parts = [outputs.get(f"cross_present_{part}_names", f"present_{part}_cross_%d") for part in ("key", "value")]
    presents = tuple(part % layer for layer in layers for part in parts)
    return EncoderFiles(model_dir / encoder["filename"], inputs.get("audio_features", "audio_features"), presents)


def read_cross_decoder(model_dir: Path) -> DecoderGraph:
    """Return the description of the decoder of the speech recognition model in `model_dir`, which
    `check_model_directory` must have accepted. It describes the graph that `normalize_decoder` makes of the original
    one, so that it can run in a batch.

    Raises DoesNotFit, with the reason, if the graph cannot run in a batch.
    """
    decoder = read_config(model_dir)["model"]["decoder"]
    graph = onnx.load(str(model_dir / decoder["filename"]), load_external_data=False).graph
    inputs = {value.name: value.type.tensor_type for value in graph.input}
    outputs = {value.name: value.type.tensor_type for value in graph.output}
    input_names, output_names = decoder.get("inputs", {}), decoder.get("outputs", {})
    layers = range(int(decoder["num_hidden_layers"]))

    def names(section: dict[str, str], key: str, default: str) -> tuple[str, ...]:
        patterns = [section.get(key % part, default % part) for part in ("key", "value")]
        return tuple(pattern % layer for layer in layers for pattern in patterns)

    past = names(input_names, "past_%s_names", "past_%s_self_%%d")
    present = names(output_names, "present_%s_names", "present_%s_self_%%d")
    cross = names(input_names, "cross_past_%s_names", "past_%s_cross_%%d")
    input_ids, logits = input_names.get("input_ids", "input_ids"), output_names.get("logits", "logits")
    if inputs.keys() != {input_ids, *past, *cross}:
        raise DoesNotFit(f"its graph has other inputs than tokens, keys and values: {', '.join(sorted(inputs))}")
    if missing := sorted({logits, *present} - outputs.keys()):
        raise DoesNotFit(f"its graph lacks {', '.join(missing)}")
    kind = inputs[past[0]].elem_type
    cross_states = layer_states([(name, "") for name in cross], inputs)
    if any(len(state.shape) != 3 for state in cross_states):
        raise DoesNotFit("its keys and values of audio have an unknown form")
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
