"""Small edits of ONNX graphs that the modules of this package have in common."""

from collections.abc import Iterable
from typing import Any

import onnx


def replace(field: Any, values: Iterable[Any]) -> None:
    """Replace all values of a repeated field of a protobuf message."""
    values = list(values)
    del field[:]
    field.extend(values)


def drop_unread(graph: onnx.GraphProto) -> None:
    """Remove all nodes whose outputs are read neither by a remaining node nor as an output of the graph."""
    wanted = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):  # in a graph each node follows the nodes that it reads
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
            wanted.update(name for a in node.attribute for inner in a.g.node for name in inner.input)
    replace(graph.node, kept[::-1])
