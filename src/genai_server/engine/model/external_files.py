"""Finds the files in which an ONNX file's weights are stored, without importing onnx.

Importing onnx would make each start a sixth of a second longer.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The key of a tensor's external file, which is in every ONNX file that has one.
_LOCATION = b"location"
_MODEL, _TENSOR = "ModelProto", "TensorProto"
# The fields of messages that lead to tensors, by their numbers in onnx.proto3, with the messages that they have.
_LEADING: dict[str, dict[int, str]] = {
    _MODEL: {7: "GraphProto", 25: "FunctionProto"},
    "GraphProto": {1: "NodeProto", 5: _TENSOR, 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: _TENSOR,
        6: "GraphProto",
        10: _TENSOR,
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: _TENSOR, 2: _TENSOR},
}
# Fields of a tensor, a value of the second one, and fields of the entries of the first one.
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_EXTERNAL = 1
_KEY, _VALUE = 1, 2


def external_files(onnx_file: Path) -> dict[str, int]:
    """Return the names of the weight files to which an ONNX file refers, with the size in bytes that each must at least
    have.

    Empty for a file that is no ONNX graph, because ONNX Runtime reports what is wrong with it. Raises OSError.
    """
    data = onnx_file.read_bytes()
    if _LOCATION not in data:
        return {}
    needed: dict[str, int] = {}
    try:
        for tensor in _tensors(data, _MODEL):
            fields = _fields(tensor)
            if (_DATA_LOCATION, _EXTERNAL) in fields:
                entries = (dict(_fields(entry)) for number, entry in fields if number == _EXTERNAL_DATA)
                where = {entry.get(_KEY, b""): entry.get(_VALUE, b"").decode() for entry in entries}
                end = _number(where.get(b"offset")) + _number(where.get(b"length"))
                name = where.get(_LOCATION, "")
                needed[name] = max(needed.get(name, 0), end)
    except Exception:  # protobuf's errors have no base of their own
        return {}
    return dict(sorted(needed.items()))


def _tensors(data: bytes, message: str) -> Iterator[bytes]:
    """Yield the serialized TensorProto of each tensor with external data in a serialized protobuf message, at any
    depth.

    `data` is the message, and `message` its type, such as "GraphProto".
    """
    if message == _TENSOR:
        yield data
        return
    leading = _LEADING[message]
    for number, inner in _fields(data):
        if number in leading and _LOCATION in inner:
            yield from _tensors(inner, leading[number])


def _fields(data: bytes) -> list[tuple[int, Any]]:
    """Return the number and the value, an integer or bytes, of each field in a serialized protobuf message.

    Raises protobuf's DecodeError.
    """
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    message = Empty()
    message.ParseFromString(data)
    return [(field.field_number, field.data) for field in UnknownFieldSet(message)]


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else 0
