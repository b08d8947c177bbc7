"""Times one attention layer (GroupQueryAttention, CPU) with 8-bit and 32-bit keys and values.

Measures a decode step, and a chunk of 64 tokens, at several context lengths. `difference` is the largest deviation of
the output, as a share of the largest output. Run it with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from _models.table import table
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HEADS, KV_HEADS, HEAD_SIZE = 14, 2, 64
CHUNK, ROUNDS = 64, 9
# Rows and tokens of context of each.
CASES = ((1, 500), (1, 3500), (16, 500), (16, 2000))
QUICK_CASES = ((1, 40), (2, 30))
# Keys and values are drawn from a standard normal distribution.
SCALE = 4 / 127
HEAD = ["rows", "context", "keys", "ms a decode step", "ms a chunk of 64", "difference"]

Floats = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of ONNX Runtime (2)")
    parser.add_argument("--quick", action="store_true", help="short contexts only")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    rows = list(measured(QUICK_CASES if arguments.quick else CASES, arguments.threads))
    print(table([HEAD, *rows], markdown=arguments.markdown))


def measured(cases: tuple[tuple[int, int], ...], threads: int) -> Iterator[list[str]]:
    """The rows of the table."""
    layers = {"32 bits": Layer("", threads), "8 bits": Layer("PER_TENSOR", threads)}
    layers["8 bits, by channel"] = Layer("PER_CHANNEL", threads)
    for rows, context in cases:
        reference = None
        for name, layer in layers.items():
            layer.fill(rows, context)
            step = drawn(1, (rows, 1))
            output = layer.run(step, context)
            reference = output if reference is None else reference
            difference = float(np.abs(output - reference).max() / np.abs(reference).max())
            decoding = timed(layer, step, context)
            reading = timed(layer, drawn(2, (1, CHUNK)), context)
            yield [f"{rows}", f"{context}", name, f"{decoding:.2f}", f"{reading:.2f}", f"{difference:.3f}"]


class Layer:
    """One attention layer over keys and values [rows, kv_heads, length, head_size]; `quantized` empty means 32 bits."""

    def __init__(self, quantized: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self._type = np.int8 if quantized else np.float32
        self._session = onnxruntime.InferenceSession(graph(quantized), options, providers=["CPUExecutionProvider"])
        self._cache: dict[str, NDArray[Any]] = {}

    def fill(self, rows: int, context: int) -> None:
        """Make a context for each of some rows."""
        shape = (rows, KV_HEADS, context + CHUNK, HEAD_SIZE)
        for number, name in enumerate(("key", "value")):
            values = np.random.default_rng(number).standard_normal(shape, np.float32)
            scaled = np.clip(np.round(values / SCALE), -128, 127) if self._type is np.int8 else values
            self._cache[name] = scaled.astype(self._type)

    def run(self, qkv: Floats, context: int) -> Floats:
        """Attention of new tokens [rows, tokens, features] behind `context` tokens."""
        rows, tokens, _ = qkv.shape
        binding = self._session.io_binding()
        binding.bind_cpu_input("qkv", qkv)
        binding.bind_cpu_input("last", np.full(rows, context + tokens - 1, np.int32))
        binding.bind_cpu_input("longest", np.array(context + tokens, np.int32))
        for name, cache in self._cache.items():
            part = cache[:rows]
            binding.bind_input(f"past_{name}", "cpu", 0, part.dtype, part.shape, part.ctypes.data)
            binding.bind_output(f"present_{name}", "cpu", 0, part.dtype, part.shape, part.ctypes.data)
        output = np.empty((rows, tokens, HEADS * HEAD_SIZE), np.float32)
        binding.bind_output("output", "cpu", 0, output.dtype, output.shape, output.ctypes.data)
        self._session.run_with_iobinding(binding)
        return output


def drawn(seed: int, shape: tuple[int, int]) -> Floats:
    """Queries, keys and values of new tokens [rows, tokens, features]."""
    features = (HEADS + 2 * KV_HEADS) * HEAD_SIZE
    return np.random.default_rng(seed).standard_normal((*shape, features), np.float32)


def timed(layer: Layer, qkv: Floats, context: int) -> float:
    """The median milliseconds of a pass."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        layer.run(qkv, context)
        times.append(time.perf_counter() - started)
    return 1000 * median(times)


def graph(quantized: str) -> bytes:
    """One operator, whose scales are constants where it is quantized."""
    cache_type = TensorProto.INT8 if quantized else TensorProto.FLOAT
    inputs = ["qkv", "", "", "past_key", "past_value", "last", "longest"]
    attributes: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": KV_HEADS}
    scales = []
    if quantized:
        attributes |= {"k_quant_type": quantized, "v_quant_type": quantized, "kv_cache_bit_width": 8}
        inputs += ["", "", "", "", "", "key_scale", "value_scale"]
        scale = np.full([1] if quantized == "PER_TENSOR" else [1, KV_HEADS, 1, HEAD_SIZE], SCALE, np.float32)
        scales = [numpy_helper.from_array(scale, name) for name in inputs[-2:]]
    node = helper.make_node(
        "GroupQueryAttention",
        inputs,
        ["output", "present_key", "present_value"],
        domain="com.microsoft",
        **attributes,
    )
    value = helper.make_tensor_value_info
    cache: list[str | int | None] = ["rows", KV_HEADS, "length", HEAD_SIZE]
    taken = [
        value("qkv", TensorProto.FLOAT, ["rows", "tokens", (HEADS + 2 * KV_HEADS) * HEAD_SIZE]),
        *(value(f"past_{name}", cache_type, cache) for name in ("key", "value")),
        value("last", TensorProto.INT32, ["rows"]),
        value("longest", TensorProto.INT32, []),
    ]
    given = [
        value("output", TensorProto.FLOAT, ["rows", "tokens", HEADS * HEAD_SIZE]),
        *(value(f"present_{name}", cache_type, cache) for name in ("key", "value")),
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "attention", taken, given, scales), opset_imports=opsets)
    model.ir_version = 10
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
