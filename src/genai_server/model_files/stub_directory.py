"""Writes stubs of model directories (`write_stub`): directories without weights, from which onnxruntime-genai loads a
model's image or audio processor.

onnxruntime-genai creates a processor only from a loaded model. A process that only prepares images or audio therefore
loads a stub: a directory with the model's own configuration and tokenizer, and with graphs that have the same inputs
and outputs but no nodes.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from genai_server.model_files.config_files import GENAI_CONFIG, read_object

# Larger files are weights, which are not needed here.
_MAX_COPIED = 64 * 1024 * 1024


def write_stub(model_dir: Path, folder: Path, graphs: Sequence[str], **sections: Any) -> dict[str, Any]:
    """Write a stub of the model directory `model_dir` into the empty folder `folder`: a model that onnxruntime-genai
    loads on the CPU and that has no weights, so that its image or audio processor can be used.

    `graphs` are the names of the sections below `model` in genai_config.json whose graphs the stub needs; `sections`
    has values that replace other sections. Returns the section `model` of the stub's genai_config.json.
    """
    config = read_object(model_dir / GENAI_CONFIG)
    model: dict[str, Any] = config["model"]
    model |= sections
    for name in graphs:
        section = model[name]
        graph = onnx.load(str(model_dir / section["filename"]), load_external_data=False).graph
        section["filename"] = f"{name}-without-weights.onnx"
        (folder / section["filename"]).write_bytes(_stub(graph))
        for unused in ("session_options", "run_options", "adapter_filename"):
            section.pop(unused, None)
    (folder / GENAI_CONFIG).write_text(json.dumps(config), encoding="utf-8")
    for path in model_dir.iterdir():
        if path.name != GENAI_CONFIG:
            _link(path.resolve(), folder / path.name)
    return model


def _stub(graph: onnx.GraphProto) -> bytes:
    """Return a serialized ONNX model that has the inputs and outputs of `graph`, and no nodes. The outputs are
    constants, without elements where their shapes allow that.

    Inputs in bfloat16, which numpy does not have, become float32; this changes `graph`.
    """
    constants = []
    for output in graph.output:
        kind = output.type.tensor_type
        shape = [size.dim_value if size.HasField("dim_value") else 0 for size in kind.shape.dim]
        itemsize = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
        raw = bytes(int(np.prod(shape)) * itemsize)
        constants.append(TensorProto(name=output.name, data_type=kind.elem_type, dims=shape, raw_data=raw))
    for value in graph.input:
        # The processor makes tensors of the graph's type. numpy has no such numbers; the engine converts them.
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    stub = onnx.helper.make_graph([], "without weights", list(graph.input), list(graph.output), initializer=constants)
    opset = onnx.helper.make_opsetid("", 21)
    content: bytes = onnx.helper.make_model(stub, opset_imports=[opset], ir_version=10).SerializeToString()
    return content


def _link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except OSError:  # Windows allows it to administrators only
        if source.is_file() and source.stat().st_size <= _MAX_COPIED:
            shutil.copy2(source, target)
