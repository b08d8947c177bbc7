"""The files next to an ONNX file that hold its weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The key of a tensor's external file, which is in every ONNX file that has one.
_LOCATION = b"location"


def external_files(onnx_file: Path) -> dict[str, int]:
    """The weight files that an ONNX file refers to, by their names, with the bytes that its tensors need of each.

    Empty for a file that is not an ONNX graph, because only its library can report what is wrong. Raises OSError.
    """
    data = onnx_file.read_bytes()
    if _LOCATION not in data:
        return {}
    import onnx  # takes longer than all other imports at startup

    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # protobuf's errors have no base of their own
        return {}
    needed: dict[str, int] = {}
    for tensor in (found for part in (model.graph, *model.functions) for found in _tensors(part)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = {entry.key: entry.value for entry in tensor.external_data}
            end = _number(where.get("offset")) + _number(where.get("length"))
            name = where.get("location", "")
            needed[name] = max(needed.get(name, 0), end)
    return dict(sorted(needed.items()))


def _tensors(part: Any) -> Iterator[Any]:
    """The dense tensors of a graph or function, and of the graphs within."""
    yield from getattr(part, "initializer", ())
    sparse = [*getattr(part, "sparse_initializer", ())]
    for attribute in (attribute for node in part.node for attribute in node.attribute):
        given = {field.name: value for field, value in attribute.ListFields()}
        yield from (*_one(given, "t"), *given.get("tensors", ()))
        sparse += (*_one(given, "sparse_tensor"), *given.get("sparse_tensors", ()))
        for graph in (*_one(given, "g"), *given.get("graphs", ())):
            yield from _tensors(graph)
    for tensor in sparse:
        yield from (tensor.values, tensor.indices)


def _one(given: dict[str, Any], name: str) -> list[Any]:
    return [given[name]] if name in given else []


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else 0
