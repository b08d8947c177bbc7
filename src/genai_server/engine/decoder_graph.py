"""What the batched runner must know of a decoder's ONNX graph, and whether it can run it at all."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from genai_server.engine.model_files import CONFIG

_ATTENTION = "GroupQueryAttention"
_OTHER_ATTENTION = {"Attention", "MultiHeadAttention", "PagedAttention", "LinearAttention", "SparseAttention"}
_CACHE_TYPES = {onnx.TensorProto.FLOAT: np.float32, onnx.TensorProto.FLOAT16: np.float16}


class DoesNotFit(Exception):
    """The batched runner cannot run this model; the message says why."""


@dataclass(frozen=True)
class DecoderGraph:
    """Names and shapes of a decoder that keeps its key-value cache in place.

    `past_names` and `present_names` list keys and values of all layers in the same order. `cache_type` and
    `logits_type` are numpy's.
    """

    path: Path
    input_ids: str
    attention_mask: str
    position_ids: str | None
    logits: str
    past_names: tuple[str, ...]
    present_names: tuple[str, ...]
    num_kv_heads: int
    head_size: int
    cache_type: Any
    logits_type: Any

    @property
    def bytes_per_token(self) -> int:
        """Size of one token's keys and values over all layers."""
        return len(self.past_names) * self.num_kv_heads * self.head_size * int(np.dtype(self.cache_type).itemsize)


def read_decoder_graph(model_dir: Path) -> DecoderGraph:
    """Read the graph, not the weights. Raises DoesNotFit with the first reason against it."""
    config = json.loads((model_dir / CONFIG).read_text(encoding="utf-8"))
    decoder = config["model"]["decoder"]
    if not (config.get("search") or {}).get("past_present_share_buffer", False):
        raise DoesNotFit("its cache is not kept in place (past_present_share_buffer is false)")
    if "pipeline" in decoder or "sliding_window" in decoder:
        raise DoesNotFit("its decoder is a pipeline or windowed by onnxruntime-genai")
    graph = onnx.load(str(model_dir / decoder["filename"]), load_external_data=False).graph
    _check_operators(graph)
    names = _names(decoder)
    inputs = {value.name: value.type.tensor_type for value in graph.input}
    outputs = {value.name: value.type.tensor_type for value in graph.output}
    needed_inputs = {names.input_ids, names.attention_mask, *names.past}
    if strange := sorted(set(inputs) - needed_inputs - {names.position_ids}):
        raise DoesNotFit(f"its graph has inputs that the runner does not know: {', '.join(strange)}")
    if missing := sorted((needed_inputs - set(inputs)) | ({names.logits, *names.present} - set(outputs))):
        raise DoesNotFit(f"its graph lacks {', '.join(missing)}")
    for name in (names.input_ids, names.attention_mask, names.position_ids):
        if name in inputs and inputs[name].elem_type != onnx.TensorProto.INT64:
            raise DoesNotFit(f"its input {name} is not of type INT64")
    shape = inputs[names.past[0]].shape.dim
    return DecoderGraph(
        path=model_dir / decoder["filename"],
        input_ids=names.input_ids,
        attention_mask=names.attention_mask,
        position_ids=names.position_ids if names.position_ids in inputs else None,
        logits=names.logits,
        past_names=names.past,
        present_names=names.present,
        num_kv_heads=int(decoder.get("num_key_value_heads", shape[1].dim_value)),
        head_size=int(decoder.get("head_size", shape[3].dim_value)),
        cache_type=_float_type("cache", inputs[names.past[0]].elem_type),
        logits_type=_float_type("logits", outputs[names.logits].elem_type),
    )


@dataclass(frozen=True)
class Names:
    """What the model calls its inputs and outputs."""

    input_ids: str
    attention_mask: str
    position_ids: str
    logits: str
    past: tuple[str, ...]
    present: tuple[str, ...]


def _names(decoder: dict[str, Any]) -> Names:
    """As genai_config.json says, and where it does not, as onnxruntime-genai takes them to be."""
    inputs, outputs = decoder.get("inputs", {}), decoder.get("outputs", {})
    parts = [
        (
            inputs.get(f"past_{part}_names", f"past_key_values.%d.{part}"),
            outputs.get(f"present_{part}_names", f"present.%d.{part}"),
        )
        for part in ("key", "value")
    ]
    layers = range(int(decoder["num_hidden_layers"]))
    return Names(
        input_ids=inputs.get("input_ids", "input_ids"),
        attention_mask=inputs.get("attention_mask", "attention_mask"),
        position_ids=inputs.get("position_ids", "position_ids"),
        logits=outputs.get("logits", "logits"),
        past=tuple(past % layer for layer in layers for past, _ in parts),
        present=tuple(present % layer for layer in layers for _, present in parts),
    )


def _float_type(what: str, element: "onnx.TensorProto.DataType") -> Any:
    if element not in _CACHE_TYPES:
        raise DoesNotFit(f"its {what} is of type {onnx.TensorProto.DataType.Name(element)}")
    return _CACHE_TYPES[element]


def _check_operators(graph: onnx.GraphProto) -> None:
    operators = {node.op_type for node in graph.node}
    if _ATTENTION not in operators:
        raise DoesNotFit(f"its attention is not {_ATTENTION}")
    if others := sorted(operators & _OTHER_ATTENTION):
        raise DoesNotFit(f"its attention is partly {', '.join(others)}")
    if "If" in operators:
        raise DoesNotFit("its graph branches on the length of the whole batch, so that rows would depend on each other")
