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
    if not config.get("search", {}).get("past_present_share_buffer", False):
        raise DoesNotFit("its cache is not kept in place (past_present_share_buffer is false)")
    if "pipeline" in decoder or "sliding_window" in decoder:
        raise DoesNotFit("its decoder is a pipeline or windowed by onnxruntime-genai")
    graph = onnx.load(str(model_dir / decoder["filename"]), load_external_data=False).graph
    _check_operators(graph)
    layers = range(decoder["num_hidden_layers"])
    inputs, outputs = decoder["inputs"], decoder["outputs"]
    parts = ("key", "value")
    past = tuple(inputs[f"past_{part}_names"] % layer for layer in layers for part in parts)
    present = tuple(outputs[f"present_{part}_names"] % layer for layer in layers for part in parts)
    given = {value.name: value.type.tensor_type for value in graph.input}
    made = {value.name: value.type.tensor_type for value in graph.output}
    position_ids = inputs.get("position_ids")
    known = {inputs["input_ids"], inputs["attention_mask"], position_ids, *past}
    strange = sorted(set(given) - known)
    if strange:
        raise DoesNotFit(f"its graph has inputs that the runner does not know: {', '.join(strange)}")
    missing = sorted({*past, *present, outputs["logits"]} - set(given) - set(made))
    if missing:
        raise DoesNotFit(f"its graph lacks {', '.join(missing)}")
    cache = given[past[0]].elem_type
    if cache not in _CACHE_TYPES:
        raise DoesNotFit(f"its cache is of type {onnx.TensorProto.DataType.Name(cache)}")
    return DecoderGraph(
        path=model_dir / decoder["filename"],
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        position_ids=position_ids if position_ids in given else None,
        logits=outputs["logits"],
        past_names=past,
        present_names=present,
        num_kv_heads=int(decoder["num_key_value_heads"]),
        head_size=int(decoder["head_size"]),
        cache_type=_CACHE_TYPES[cache],
        logits_type=_CACHE_TYPES[made[outputs["logits"]].elem_type],
    )


def _check_operators(graph: onnx.GraphProto) -> None:
    operators = {node.op_type for node in graph.node}
    if _ATTENTION not in operators:
        raise DoesNotFit(f"its attention is not {_ATTENTION}")
    if others := sorted(operators & _OTHER_ATTENTION):
        raise DoesNotFit(f"its attention is partly {', '.join(others)}")
    if "If" in operators:
        raise DoesNotFit("its graph branches on the length of the whole batch, so that rows would depend on each other")
