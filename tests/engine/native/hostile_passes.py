"""Runs passes of genai-server-native with random and hostile inputs: `python -m … LIBRARY FIRST COUNT`.

Each number is a pass, the same every time. Passes that are valid must be computed, and nearly as the kernels of the
lowest instruction set do; others may be refused. Writes the number of each pass before it runs, because it may end the
process, and at the end how many were refused and computed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import genai_server_native
import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tests.engine.native.operator_session import session

DOMAIN = genai_server_native.DOMAIN
HUGE = (-(1 << 63), -(1 << 31), -1, 0, 1, 17, 1 << 15, 1 << 30, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 61, (1 << 63) - 1)
ODD_FLOATS = (np.nan, np.inf, -np.inf, 0.0, 1e-45, 1e-38, 3e38, -3e38)
# Of the largest value that is expected. Kernels sum in orders of their own; bfloat16 has 8 bits.
MAX_DIFFERENCE, MAX_DIFFERENCE_OF_BF16 = 1e-4, 0.05
Arrays = dict[str, NDArray[Any]]


class Pass:
    """A node, what it is given when its session is made, and what when it runs."""

    def __init__(self, operator: str, order: tuple[str, ...]) -> None:
        self.operator, self.order = operator, order
        self.attributes: dict[str, Any] = {}
        # Constants are in the graph.
        self.constants: Arrays = {}
        self.inputs: Arrays = {}
        self.max_difference = MAX_DIFFERENCE

    def session(self, threads: int) -> Any:
        given = self.constants.keys() | self.inputs.keys()
        names = [name if name in given else "" for name in self.order]
        node = helper.make_node(self.operator, names, ["y"], domain=DOMAIN, **self.attributes)
        kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in self.inputs.items()}
        return session(node, self.constants, kinds, threads, has_arena=False)  # the sanitizer sees each allocation


def pick(rng: np.random.Generator, *among: Any) -> Any:
    return among[rng.integers(len(among))]


def floats(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape, np.float32)


def add_weights(
    rng: np.random.Generator, given: Pass, prefix: str, bits: int, block: int, depth: int, panels: int
) -> None:
    """Weights of so many panels of products of `depth` inputs, with their scales and offsets."""
    if bits > 8:
        kind = np.float32 if bits == 32 else np.float16
        given.constants[f"{prefix}weights"] = floats(rng, panels * 64 * depth).astype(kind)
        return
    blocks = -(-depth // block)
    given.constants[f"{prefix}weights"] = rng.integers(0, 256, panels * 64 * blocks * block * bits // 8, np.uint8)
    given.constants[f"{prefix}scales"] = floats(rng, panels, blocks, 64)
    if rng.random() < 0.5:
        given.constants[f"{prefix}offsets"] = floats(rng, panels, blocks, 64)


def valid_product(rng: np.random.Generator) -> Pass:
    found = Pass("PackedMatMul", ("x", "weights", "scales", "offsets", "bias"))
    bits, block = int(pick(rng, 4, 8, 4, 8, 16, 32)), int(pick(rng, 16, 32, 48, 64, 80, 128, 256, 272))
    gated = rng.random() < 0.3
    depth, outputs = int(rng.integers(1, 400)), 128 * int(rng.integers(1, 4)) if gated else int(rng.integers(1, 300))
    if rng.random() < 0.3:  # so many inputs that threads share them
        depth += 4096
    found.attributes = {"N": outputs, "K": depth, "block": block, "bits": bits, "gated": int(gated)}
    if bits > 8 or rng.random() < 0.3:
        found.attributes["activation_bits"] = 32
    add_weights(rng, found, "", bits, block, depth, -(-outputs // 64))
    if rng.random() < 0.5 and not gated:
        found.constants["bias"] = floats(rng, outputs)
    rows = pick(rng, [], [0], [1], [2], [3, 3], [0, 5], [1, 17], [33], [40], [2, 1, 1, 4], [150])
    found.inputs["x"] = floats(rng, *rows, depth)
    return found


def valid_experts(rng: np.random.Generator) -> Pass:
    parts = [f"{layer}_{part}" for layer in ("first", "second") for part in ("weights", "scales", "offsets", "bias")]
    found = Pass("PackedExperts", ("x", "router", "router_weights", *parts))
    bits, blocks = int(pick(rng, 4, 8, 16, 32)), [int(pick(rng, 16, 32, 48, 128)) for _ in range(2)]
    number = int(rng.integers(1, 6))
    depth, inner, activation = int(rng.integers(1, 200)), int(rng.integers(1, 200)), int(rng.integers(5))
    found.attributes = {"experts": number, "k": int(rng.integers(1, number + 1)), "inner": inner, "K": depth}
    found.attributes["bits"] = bits
    found.attributes |= {"block": blocks[0], "second_block": blocks[1], "activation": activation}
    found.attributes |= {"normalize_routing_weights": int(rng.integers(2)), "limits_result": int(rng.integers(2))}
    if bits > 8 or rng.random() < 0.3:
        found.attributes["activation_bits"] = 32
    else:  # a value that is rounded to the next of 127 steps
        found.max_difference = MAX_DIFFERENCE_OF_BF16
    panels = -(-inner // 64) * (1 if activation else 2), -(-depth // 64)
    add_weights(rng, found, "first_", bits, blocks[0], depth, number * panels[0])
    add_weights(rng, found, "second_", bits, blocks[1], inner, number * panels[1])
    for name, outputs in (("first_bias", 64 * panels[0]), ("second_bias", depth)):
        if rng.random() < 0.5:
            found.constants[name] = floats(rng, number, outputs)
    tokens = pick(rng, [0], [1], [2], [1, 17], [33], [3, 50])
    found.inputs = {"x": floats(rng, *tokens, depth), "router": floats(rng, int(np.prod(tokens)), number)}
    if rng.random() < 0.3:
        found.inputs["router_weights"] = np.abs(floats(rng, int(np.prod(tokens)), number))
    return found


def cached(rng: np.random.Generator, kind: Any, *shape: int) -> NDArray[Any]:
    """Keys or values of this type in slots [slots, heads, length, head_size]."""
    if kind is not np.int8:
        return floats(rng, *shape).astype(kind)
    scales = rng.random((*shape[:-1], 1), np.float32) / 40
    return np.concatenate([rng.integers(-127, 128, shape, np.int8), scales.view(np.int8)], axis=-1)


def valid_attention(rng: np.random.Generator) -> Pass:
    order = ("query", "key", "value", "keys", "values", "starts", "pasts", "slots", "cos", "sin", "places")
    found = Pass("RaggedAttention", (*order, "sinks", "query_norm", "key_norm"))
    cache_heads, group, size = int(pick(rng, 1, 2, 3)), int(pick(rng, 1, 2, 7)), int(pick(rng, 16, 32, 48, 64, 80, 128))
    heads, length, slots = cache_heads * group, int(pick(rng, 1, 5, 64, 65, 700)), int(rng.integers(1, 4))
    found.attributes = {"num_heads": heads, "kv_num_heads": cache_heads, "rotary_interleaved": int(rng.integers(2))}
    found.attributes |= {"local_window_size": int(pick(rng, -1, 1, 3, 64, 100)), "softcap": float(pick(rng, 0, 3))}
    kind = pick(rng, np.float32, np.float16, np.int8)
    if kind is np.int8:  # kernels may round a value on either side
        found.max_difference = MAX_DIFFERENCE_OF_BF16
    if rng.random() < 0.3:
        found.attributes["bf16"], found.max_difference = 1, MAX_DIFFERENCE_OF_BF16
    pasts, numbers = [], []
    used = rng.permutation(slots)[: rng.integers(1, slots + 1)]
    for _ in used:
        numbers.append(int(rng.integers(0, min(length, int(pick(rng, 1, 4, 200))) + 1)))
        pasts.append(int(rng.integers(0, length - numbers[-1] + 1)))
    tokens = sum(numbers) + int(pick(rng, 0, 0, 3))
    width, key_width = heads * size, cache_heads * size
    if rng.random() < 0.5:
        found.inputs |= {name: floats(rng, 1, tokens, key_width) for name in ("key", "value")}
        found.inputs["query"] = floats(rng, 1, tokens, width)
    else:
        found.inputs["query"] = floats(rng, 1, tokens, width + 2 * key_width)
    found.inputs |= {name: cached(rng, kind, slots, cache_heads, length, size) for name in ("keys", "values")}
    found.inputs["starts"] = np.cumsum([0, *numbers]).astype(np.int32)
    found.inputs["pasts"], found.inputs["slots"] = np.array(pasts, np.int32), used.astype(np.int32)
    if rng.random() < 0.7:
        angles = floats(rng, length, int(rng.integers(1, size // 2 + 1)))
        found.inputs |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        if rng.random() < 0.5:
            found.inputs["places"] = rng.integers(0, length, (1, tokens))
    for name, number in (("sinks", heads), ("query_norm", size), ("key_norm", size)):
        if rng.random() < 0.3:
            found.inputs[name] = floats(rng, number)
    return found


def rows_of(rng: np.random.Generator, slots: int) -> tuple[Arrays, int]:
    """Rows with states, and the number of all flat tokens."""
    used = rng.permutation(slots)[: rng.integers(1, slots + 1)]
    numbers = rng.integers(0, int(pick(rng, 2, 5, 40)), len(used))
    found = {"starts": np.cumsum([0, *numbers]), "slots": used, "committed": rng.integers(0, numbers + 1)}
    arrays = {name: values.astype(np.int32) for name, values in found.items()}
    return arrays, int(numbers.sum()) + int(pick(rng, 0, 0, 3))


def valid_convolution(rng: np.random.Generator) -> Pass:
    found = Pass("RaggedConvolution", ("tokens", "weights", "state", "starts", "slots", "committed", "bias"))
    slots, width, channels = int(rng.integers(1, 5)), int(rng.integers(1, 7)), int(pick(rng, 1, 15, 16, 100, 600))
    rows, tokens = rows_of(rng, slots)
    found.attributes = {"silu": int(rng.integers(2))}
    found.inputs = {"tokens": floats(rng, 1, tokens, channels), "weights": floats(rng, width, channels)}
    found.inputs |= {"state": floats(rng, slots, width - 1, channels), **rows}
    if rng.random() < 0.5:
        found.inputs["bias"] = floats(rng, channels)
    return found


def valid_linear_attention(rng: np.random.Generator) -> Pass:
    order = ("query", "key", "value", "state", "starts", "slots", "committed", "decay", "rate")
    found = Pass("RaggedLinearAttention", order)
    slots, size, value_size = int(rng.integers(1, 4)), int(pick(rng, 2, 16, 30, 64)), int(pick(rng, 4, 20, 64, 100))
    query_heads, heads, key_heads = pick(rng, (1, 1, 1), (4, 2, 2), (1, 4, 2), (2, 4, 4), (6, 2, 1))
    rows, tokens = rows_of(rng, slots)
    delta = int(rng.integers(2))
    found.attributes = {"q_num_heads": query_heads, "kv_num_heads": heads, "delta": delta, "scale": 0.5}
    keys = floats(rng, 1, tokens, key_heads, size)
    keys /= np.sqrt((keys**2).sum(-1, keepdims=True))
    found.inputs = {"query": floats(rng, 1, tokens, query_heads * size)}
    found.inputs |= {"key": keys.reshape(1, tokens, key_heads * size)}
    found.inputs |= {"value": floats(rng, 1, tokens, heads * value_size)}
    found.inputs |= {"state": floats(rng, slots, heads, size, value_size), **rows}
    if rng.random() < 0.7:
        found.inputs["decay"] = -rng.random((1, tokens, heads * int(pick(rng, 1, size))), np.float32)
    if delta:
        found.inputs["rate"] = rng.random((1, tokens, int(pick(rng, 1, heads))), np.float32)
    return found


def valid_low_rank(rng: np.random.Generator) -> Pass:
    found = Pass("RaggedLowRank", ("x", "a", "b", "starts", "ranks", "num_ranks"))
    inputs, outputs, ranks = int(rng.integers(1, 200)), int(rng.integers(1, 200)), int(pick(rng, 0, 1, 8, 70))
    numbers = rng.integers(0, int(pick(rng, 2, 70)), int(rng.integers(1, 5)))
    found.inputs = {"x": floats(rng, 1, int(numbers.sum()) + int(pick(rng, 0, 2)), inputs)}
    found.inputs |= {"a": floats(rng, ranks, inputs), "b": floats(rng, ranks, outputs)}
    first = rng.integers(0, ranks + 1, len(numbers))
    places = {"starts": np.cumsum([0, *numbers]), "ranks": first, "num_ranks": rng.integers(0, ranks - first + 1)}
    found.inputs |= {name: values.astype(np.int32) for name, values in places.items()}
    return found


VALID = (valid_product, valid_experts, valid_attention, valid_convolution, valid_linear_attention, valid_low_rank)


def change_attribute(rng: np.random.Generator, given: Pass) -> None:
    if not given.attributes:
        return
    name = pick(rng, *given.attributes, *(["scale", "qk_norm_epsilon"] if "num_heads" in given.attributes else []))
    is_float = name in ("softcap", "scale", "qk_norm_epsilon")
    given.attributes[name] = float(pick(rng, *ODD_FLOATS)) if is_float else int(pick(rng, *HUGE, 2, 3, 16, 24, 128))


def change_shape(rng: np.random.Generator, given: Pass) -> None:
    arrays = pick(rng, *[part for part in (given.constants, given.inputs) if part])
    name = pick(rng, *arrays)
    array = arrays[name]
    shape = list(array.shape)
    way = rng.integers(4)
    if way == 0 and shape:
        axis = int(rng.integers(len(shape)))
        shape[axis] = int(pick(rng, 0, 1, shape[axis] + 1, shape[axis] + 16, max(shape[axis] - 1, 0), 2 * shape[axis]))
        arrays[name] = np.resize(array, shape)
    elif way == 1:
        arrays[name] = array.reshape([1] * int(pick(rng, 1, 5, 9)) + shape)
    elif way == 2:
        arrays[name] = array.reshape(-1)
    else:
        arrays[name] = np.array(array.flat[0] if array.size else 1, array.dtype)


def change_type(rng: np.random.Generator, given: Pass) -> None:
    name = pick(rng, *given.inputs)
    kind = pick(rng, np.float32, np.float16, np.float64, np.int32, np.int64, np.uint8)
    given.inputs[name] = given.inputs[name].astype(kind)


def leave_out(rng: np.random.Generator, given: Pass) -> None:
    del given.inputs[pick(rng, *given.inputs)]


def change_values(rng: np.random.Generator, given: Pass) -> None:
    name = pick(rng, *given.inputs)
    array = given.inputs[name] = given.inputs[name].copy()
    if not array.size:
        return
    for _ in range(int(pick(rng, 1, 3, 30))):
        at = int(rng.integers(array.size))
        if array.dtype.kind == "f":
            array.flat[at] = pick(rng, *ODD_FLOATS)
        else:
            limits = np.iinfo(array.dtype)
            value = int(pick(rng, *HUGE, *range(-2, 8), 63, 64, 700))
            array.flat[at] = min(max(value, limits.min), limits.max)


Change = Callable[[np.random.Generator, Pass], None]
CHANGES: list[Change] = [change_attribute, change_shape, change_type, leave_out, change_values, change_values]


def run(given: Pass, instruction_set: str, threads: int) -> tuple[str, NDArray[np.float32] | None]:
    """Why a pass was refused, or its result."""
    genai_server_native.use(instruction_set)
    try:
        (found,) = given.session(threads).run(None, {name: array.copy() for name, array in given.inputs.items()})
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        return str(error) or type(error).__name__, None
    return "", found


def main(first: int, count: int) -> tuple[int, int]:
    """How many passes were refused and computed. Raises AssertionError if a valid one was refused, or is wrong."""
    sets = genai_server_native.instruction_sets()
    refused = computed = 0
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        given = pick(rng, *VALID)(rng)
        changes = [pick(rng, *CHANGES) for _ in range(int(pick(rng, 0, 1, 1, 2, 3)))]
        instruction_set, threads = str(pick(rng, *sets)), int(pick(rng, 1, 2))
        names = [change.__name__ for change in changes]
        sys.stderr.write(f"{number} {given.operator} {instruction_set} {threads} {names}\n")
        for change in changes:
            if given.inputs:
                change(rng, given)
        error, found = run(given, instruction_set, threads)
        if found is None:
            assert changes, f"pass {number} is valid, but {error}"
            refused += 1
            continue
        computed += 1
        if not changes:
            _, expected = run(given, sets[-1], 1)
            assert expected is not None
            assert np.isfinite(found).all(), f"pass {number} has results that are no numbers"
            difference = np.abs(found - expected).max(initial=0)
            limit = given.max_difference * np.abs(expected).max(initial=0)
            assert difference <= limit, f"pass {number} differs by {difference:g}, more than {limit:g}"
    return refused, computed


if __name__ == "__main__":
    library = Path(sys.argv[1])
    genai_server_native.library = lambda: library
    sys.stdout.write("{} {}\n".format(*main(int(sys.argv[2]), int(sys.argv[3]))))
