"""Products with packed weights: random matrices, and sessions of the operator."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from genai_server.engine.graph_rewriting.packed_products import DOMAIN, PACKED
from genai_server.engine.graph_rewriting.packed_weights import FloatMatrix, Matrix, QuantizedMatrix, pack
from tests.engine.native.operator_session import session


def matrix(bits: int, num_outputs: int, num_inputs: int, block: int, *, offsets: bool = False) -> QuantizedMatrix:
    rng = np.random.default_rng(bits + num_outputs)
    blocks = -(-num_inputs // block)
    weights = rng.integers(0, 1 << bits, (num_outputs, blocks * block), np.uint8)
    scales = ((rng.random((num_outputs, blocks)) + 0.5) / (1 << bits)).astype(np.float32)
    added = rng.standard_normal((num_outputs, blocks), np.float32) if offsets else None
    return QuantizedMatrix(weights, scales, added, bits, num_inputs, block)


def activations(rows: int, num_inputs: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((rows, num_inputs), np.float32)


def product(
    given: Matrix,
    others: Mapping[str, int] = MappingProxyType({}),
    *,
    bias: NDArray[np.float32] | None = None,
    gated: bool = False,
    threads: int = 2,
) -> Any:
    """A session with a product; attributes of the operator are those of the matrix, apart from `others`."""
    packed = pack(given)
    tensors = {"w": packed.weights.reshape(-1), "s": packed.scales, "o": packed.offsets, "b": bias}
    inputs = ["x", *(name if array is not None else "" for name, array in tensors.items())]
    attributes: dict[str, Any] = {"N": len(given.weights), "gated": int(gated)}
    if isinstance(given, FloatMatrix):
        attributes |= {"K": given.weights.shape[1], "bits": 8 * given.weights.itemsize}
    else:
        attributes |= {"K": given.num_inputs, "bits": given.bits, "block": given.block}
    node = helper.make_node(PACKED, inputs, ["y"], domain=DOMAIN, **attributes | dict(others))
    return session(node, tensors, threads=threads)
