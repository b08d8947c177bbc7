"""Reads files with LoRA adapters (`.onnx_adapter`, ONNX Runtime's AdapterFormat) and checks them against a model's
graph.

The graph of a model that takes adapters has inputs for an adapter's weights. They are optional: their default values
mean that there is no adapter. ONNX Runtime notices weights that do not match only when a request runs, and its message
names neither the file nor every fault. Therefore the weights are checked here, when an adapter is loaded.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from genai_server.engine.model.files import is_lfs_pointer, read_config
from genai_server.errors import AdapterLoadFailed, ModelDirectoryError

# The usual suffix; ONNX Runtime does not require it.
ADAPTER_SUFFIX = ".onnx_adapter"
_MAX_SHOWN = 3
# Fields of the format's tables (FlatBuffers): the parameters of an adapter, and what a parameter has.
_PARAMETERS, _NAME, _DIMS, _VALUES = 10, 4, 6, 10


def optional_inputs(graph: onnx.GraphProto) -> "dict[str, onnx.TypeProto.Tensor]":
    """Return the types and shapes of a graph's optional inputs, those with a default value, by name. These are the
    inputs for the weights of LoRA adapters.
    """
    defaults = {tensor.name for tensor in graph.initializer}
    return {value.name: value.type.tensor_type for value in graph.input if value.name in defaults}


def adapter_inputs(model_dir: Path) -> "dict[str, onnx.TypeProto.Tensor]":
    """Return the types and shapes of the inputs, by name, that the decoder's graph of the model in `model_dir` has for
    the weights of LoRA adapters. Empty if the model takes no adapters.

    Raises ModelDirectoryError if the graph cannot be read.
    """
    file = model_dir / str(read_config(model_dir)["model"]["decoder"]["filename"])
    try:
        return optional_inputs(onnx.load(str(file), load_external_data=False).graph)
    except Exception as error:  # a broken file may cause any error in its reader
        raise ModelDirectoryError(f"{file} cannot be read as an ONNX graph: {error}") from None


def check_adapter_file(path: Path, inputs: "Mapping[str, onnx.TypeProto.Tensor]") -> None:
    """Check that the file at `path` is a LoRA adapter for a model's graph: each of its weights must have the name, type
    and shape of one of `inputs`, which `adapter_inputs` has returned.

    Raises AdapterLoadFailed, whose message names the file and what does not match.
    """
    weights = _read(path)
    if not inputs:
        raise AdapterLoadFailed("the model takes no adapters: its graph has no inputs with defaults for their weights")
    if not weights:
        raise AdapterLoadFailed(f"{path} has no weights")
    if unknown := sorted(weights.keys() - inputs.keys()):
        more = f" and {len(unknown) - _MAX_SHOWN} more" if len(unknown) > _MAX_SHOWN else ""
        raise AdapterLoadFailed(
            f"{path} does not fit this model, whose graph has no input {', '.join(unknown[:_MAX_SHOWN])}{more}"
        )
    for name, weight in weights.items():
        if not _fits(weight, inputs[name]):
            raise AdapterLoadFailed(
                f"{path} has {name} as {_shown(weight)}, but the model takes {_expected(inputs[name])}"
            )


def read_adapter_file(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the weights in an adapter file, as arrays of 32-bit floats by name. `check_adapter_file` must have
    accepted the file before. Raises AdapterLoadFailed if it cannot be read.

    The weights are copied into memory. Later changes of the file therefore have no effect, and truncating it does not
    kill the process, as it would if the file were mapped into memory.
    """
    # onnxruntime brings it along.
    from flatbuffers import encode, number_types, packer, table

    try:
        content = path.read_bytes()
    except OSError as error:
        raise AdapterLoadFailed(f"{path} cannot be read: {error}") from None
    root = table.Table(content, encode.Get(packer.uoffset, content, 0))
    field = root.Offset(_PARAMETERS)
    weights = {}
    for number in range(root.VectorLen(field)):
        entry = table.Table(content, root.Indirect(root.Vector(field) + number * number_types.UOffsetTFlags.bytewidth))
        name = entry.String(entry.Pos + entry.Offset(_NAME)).decode()
        dims = entry.GetVectorAsNumpy(number_types.Int64Flags, entry.Offset(_DIMS))
        values = entry.GetVectorAsNumpy(number_types.Uint8Flags, entry.Offset(_VALUES))
        weights[name] = values.view(np.float32).reshape(dims)
    return weights


@contextmanager
def private_copy(path: Path) -> Iterator[Path]:
    """Context manager that copies an adapter file to a private folder, and gives the path of the copy.
    onnxruntime-genai maps adapter files into memory, and no one else can change or truncate the copy. Raises
    AdapterLoadFailed if the file cannot be copied.

    The copy is removed at the end; its mapping stays valid. On Windows nothing is copied and the path is that of the
    original, because a mapped file cannot be truncated or removed there.
    """
    if sys.platform == "win32":
        yield path
    else:
        try:
            with tempfile.TemporaryDirectory(prefix="genai-server-adapter-") as folder:
                yield Path(shutil.copy(path, folder))
        except OSError as error:
            raise AdapterLoadFailed(f"{path} cannot be copied: {error.strerror}") from None


def _read(path: Path) -> dict[str, Any]:
    """Return the weights in the LoRA adapter file at `path`, as ONNX Runtime's OrtValues by name. Raises
    AdapterLoadFailed if it is missing or is no adapter file.
    """
    # Imported here: a scripted engine imports this module and needs no ONNX Runtime.
    import onnxruntime

    if not path.is_file():
        raise AdapterLoadFailed(f"{path} does not exist, or is not a file")
    try:
        if is_lfs_pointer(path):
            raise AdapterLoadFailed(f"{path} is Git's pointer to the file, not the file itself; run git lfs pull there")
        return dict(onnxruntime.AdapterFormat.read_adapter(str(path)).get_parameters())
    except OSError as error:
        raise AdapterLoadFailed(f"{path} cannot be read: {error.strerror}") from None
    except RuntimeError:  # whose message quotes ONNX Runtime's source
        raise AdapterLoadFailed(f"{path} is not an adapter file of ONNX Runtime's AdapterFormat") from None


def _fits(weight: Any, wanted: "onnx.TypeProto.Tensor") -> bool:
    shape = weight.shape()
    if weight.element_type() != wanted.elem_type or len(shape) != len(wanted.shape.dim):
        return False
    # A named dimension, such as the rank of an adapter, may have any size.
    return all(
        not dim.HasField("dim_value") or dim.dim_value == size
        for dim, size in zip(wanted.shape.dim, shape, strict=True)
    )


def _shown(weight: Any) -> str:
    return f"{onnx.TensorProto.DataType.Name(weight.element_type())} {list(weight.shape())}"


def _expected(wanted: "onnx.TypeProto.Tensor") -> str:
    dims = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in wanted.shape.dim]
    return f"{onnx.TensorProto.DataType.Name(wanted.elem_type)} [{', '.join(dims)}]"
