"""PagedAttention by ONNX's own operators, so that a batch for a device runs on the CPU.

The formulas are those of the operator's documentation: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.graph_rewriting.paged_attention import OPERATOR
from genai_server.engine.graph_rewriting.ragged import make_ragged
from genai_server.engine.kv_cache.paged_buffers import MemoryDevice, PagedBuffers
from genai_server.engine.model import session
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batched import BatchedRunner
from tests.engine.model_runners import batched_runner
from tests.running_server import DEMO

# Tokens of a block, for tests.
BLOCK = 16
ON_CPU = MemoryDevice("cpu", 0, "CPUExecutionProvider")


class Expansion:
    """The nodes that compute one PagedAttention."""

    def __init__(self, node: onnx.NodeProto, head_size: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._prefix = node.output[0]
        self._names = (f"{self._prefix}.sim{number}" for number in range(1_000_000))
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        heads, kv_heads = given["num_heads"], given["kv_num_heads"]
        inputs = [*node.input, *[""] * (17 - len(node.input))]
        query, key, value, keys, values, starts, pasts, blocks, cos, sin = inputs[:10]
        assert not any(inputs[10:16])
        given_query = query
        query, cos, sin = (self.one("Cast", name, to=TensorProto.FLOAT) if name else "" for name in (query, cos, sin))
        if key:
            key, value = (self.one("Cast", name, to=TensorProto.FLOAT) for name in (key, value))
        else:
            sizes = [size * head_size for size in (heads, kv_heads, kv_heads)]
            query, key, value = self.run("Split", query, self.constant(sizes), count=3, axis=1)
        starts, pasts, blocks = (self.one("Cast", name, to=TensorProto.INT64) for name in (starts, pasts, blocks))
        token_count = self.one("Shape", query, start=0, end=1)
        zero, one = self.constant(0), self.constant(1)
        tokens = self.one("Range", zero, self.one("Squeeze", token_count), one)
        ends = self.one("Slice", starts, self.constant([1]), self.constant([1_000_000]))
        behind = self.one("GreaterOrEqual", self.one("Unsqueeze", tokens, self.constant([1])), ends)
        rows = self.one("ReduceSum", self.one("Cast", behind, to=TensorProto.INT64), self.constant([1]), keepdims=0)
        offset = self.one("Sub", tokens, self.one("Gather", starts, rows))
        position = self.one("Add", self.one("Gather", pasts, rows), offset)
        size = self.one("Gather", self.one("Shape", keys), one)
        table = self.one("Gather", blocks, rows)
        block = self.one(
            "GatherElements", table, self.one("Unsqueeze", self.one("Div", position, size), self.constant([1])), axis=1
        )
        place = self.one(
            "Add",
            self.one("Mul", block, size),
            self.one("Unsqueeze", self.one("Mod", position, size), self.constant([1])),
        )
        if given.get("do_rotary"):
            query, key = (self._rotated(name, position, cos, sin, n) for name, n in ((query, heads), (key, kv_heads)))
        read = []
        for new, cache, written in ((key, keys, node.output[1]), (value, values, node.output[2])):
            flat = self.one("Reshape", cache, self.constant([-1, kv_heads, head_size]))
            split = self.one("CastLike", self.one("Reshape", new, self.constant([-1, kv_heads, head_size])), cache)
            found = self.one("ScatterND", flat, place, split)
            self.nodes.append(helper.make_node("Reshape", [found, self.one("Shape", cache)], [written]))
            whole = self.one("Gather", self.one("Reshape", found, self.one("Shape", cache)), table)
            length = self.one("Concat", token_count, self.constant([-1, kv_heads, head_size]), axis=0)
            read.append(self.one("Cast", self.one("Reshape", whole, length), to=TensorProto.FLOAT))
        asked = self.one("Reshape", query, self.constant([-1, kv_heads, heads // kv_heads, head_size]))
        scores = self.one("MatMul", asked, self.one("Transpose", read[0], perm=[0, 2, 3, 1]))
        scale = given.get("scale") or 1 / np.sqrt(head_size)
        scores = self.one("Mul", scores, self.constant(np.float32(scale)))
        length = self.one("Range", zero, self.one("Gather", self.one("Shape", read[0]), one), one)
        column = self.one("Unsqueeze", position, self.constant([1, 2, 3]))
        seen = self.one("LessOrEqual", length, column)
        if (window := given.get("local_window_size", -1)) > 0:
            first = self.one("Sub", column, self.constant(window))
            seen = self.one("And", seen, self.one("Greater", length, first))
        shares = self.one("Softmax", self.one("Where", seen, scores, self.constant(np.float32(-np.inf))), axis=-1)
        # What was never written may be anything, even no number.
        places = self.one("Transpose", seen, perm=[0, 1, 3, 2])
        known = self.one(
            "Where", places, self.one("Transpose", read[1], perm=[0, 2, 1, 3]), self.constant(np.float32(0))
        )
        result = self.one("MatMul", shares, known)
        flat = self.one("Reshape", result, self.constant([-1, heads * head_size]))
        self.nodes.append(helper.make_node("CastLike", [flat, given_query], [node.output[0]]))

    def _rotated(self, name: str, position: str, cos: str, sin: str, heads: int) -> str:
        axis = self.constant([0])
        batch = self.one("Unsqueeze", name, axis)
        turned = self.one(
            "RotaryEmbedding",
            batch,
            self.one("Unsqueeze", position, axis),
            cos,
            sin,
            num_heads=heads,
            domain="com.microsoft",
        )
        return self.one("Squeeze", turned, axis)

    def constant(self, value: Any) -> str:
        tensor = numpy_helper.from_array(np.asarray(value, None if isinstance(value, np.floating) else np.int64))
        return self.one("Constant", value=tensor)

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.run(kind, *inputs, **attributes)[0]

    def run(self, kind: str, *inputs: str, count: int = 1, **attributes: Any) -> list[str]:
        outputs = [next(self._names) for _ in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))
        return outputs


def open_expanded(graph: DecoderGraph, *, offers_best: bool = False) -> Any:
    """A session of a graph for a device, which runs on the CPU with one thread."""

    def make(changed: onnx.GraphProto, decoder: DecoderGraph) -> None:
        make_ragged(changed, decoder)
        expand(changed, decoder.head_size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "make_ragged", make)
        return open_session(graph, 1, offers_best=offers_best)


def on_blocks(
    session: Any, graph: DecoderGraph, model_dir: Path = DEMO, *, num_slots: int = 4, max_length: int = 128
) -> BatchedRunner:
    """A batch on a device without hardware: the memory is the CPU's."""
    make = partial(PagedBuffers, ON_CPU, 1000)
    how: dict[str, Any] = {"num_slots": num_slots, "max_length": max_length, "make_buffers": make}
    return batched_runner(model_dir, graph=graph, session=session, **how)


def expand(graph: onnx.GraphProto, head_size: int) -> None:
    """Replace all PagedAttention of a graph."""
    nodes = list(_expanded(graph, head_size))
    del graph.node[:]
    graph.node.extend(nodes)


def _expanded(graph: onnx.GraphProto, head_size: int) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        if node.op_type == OPERATOR:
            yield from Expansion(node, head_size).nodes
        else:
            yield node
