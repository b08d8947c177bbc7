"""The two groups of rows in a ragged graph (ragged.py), and the nodes that replace an operator over rows by two."""

from collections.abc import Callable, Iterable
from typing import Any

import onnx
from onnx import helper

# Prefixes of the inputs of the two groups. Past keys and values are `{group}{name}`.
NARROW, WIDE = "genai_server.narrow.", "genai_server.wide."
GROUPS = (NARROW, WIDE)
# For each group: PADDED int64 [B, S, 2] has the flat position (0, t) of each padded place; PLACES int64 [1, T_group, 2]
# has the padded place (row, s) of each of the group's flat tokens; LAST int32 [B] is each row's length after the pass,
# less one; BOUND int32 [] is at least each row's length and S; NEW int32 [B] is the number of each row's tokens.
PADDED, PLACES, LAST, BOUND, NEW = "padded", "places", "last", "bound", "new"


def split(node: onnx.NodeProto, inputs: Callable[[str, list[onnx.NodeProto]], Iterable[str]]) -> list[onnx.NodeProto]:
    """The nodes that replace an operator: one for each group, and those that pad, flatten and join.

    `inputs` gives the inputs for a group, and adds the nodes that make them. The first output is of tokens.
    """
    made: list[onnx.NodeProto] = []
    parts, out = [], node.output[0]
    for group in GROUPS:
        copy = in_group(node, group, inputs(group, made))
        parts.append(f"{group}{out}.flat")
        made += [copy, helper.make_node("GatherND", [copy.output[0], group + PLACES], parts[-1:])]
    return [*made, helper.make_node("Concat", parts, [out], axis=1)]


def in_group(node: onnx.NodeProto, group: str, inputs: Iterable[str]) -> onnx.NodeProto:
    """A copy of a node that reads these inputs. Its own name and those of its outputs begin with the group's prefix."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = group + node.name
    replace(copy.input, inputs)
    replace(copy.output, [group + name for name in node.output])
    return copy


def value_in_group(value: onnx.ValueInfoProto, group: str, length: str) -> onnx.ValueInfoProto:
    """A value [rows, heads, length, size] of a group, with its own number of rows and the given length."""
    found = onnx.ValueInfoProto()
    found.CopyFrom(value)
    found.name = group + value.name
    found.type.tensor_type.shape.dim[0].dim_param = group + "rows"
    found.type.tensor_type.shape.dim[2].dim_param = length
    return found


def replace(field: Any, values: Iterable[Any]) -> None:
    """Replace the values of a repeated field."""
    values = list(values)
    del field[:]
    field.extend(values)
