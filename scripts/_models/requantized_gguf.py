"""Writes a GGUF file of a Llama anew with its matrices in another type, rounded by llama.cpp's own functions (libgguf).

    python -m _models.requantized_gguf FILE TYPE OUT

A type is one of ggml's, or Q4_K_M, llama.cpp's mixture of Q4_K and Q6_K. These have blocks of 256 weights, and a model
whose rows are no multiple of that is widened first, so that every matrix gets the type. It runs in `.venv-models`.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import libgguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from _models.widening import HEADS, KEY_HEADS, WIDTH, widening_to

_LAYER = re.compile(r"blk\.(\d+)\.(attn_v|ffn_down)\.")


def main() -> None:
    path, kind, out = sys.argv[1:]
    reader: Any = GGUFReader(path)
    architecture = str(reader.get_field("general.architecture").contents())
    layers, width, heads, key_heads = (
        int(reader.get_field(architecture + name).contents()) for name in (".block_count", WIDTH, HEADS, KEY_HEADS)
    )
    block, _ = GGML_QUANT_SIZES[chosen(kind, "", layers)]
    widening = widening_to(block, width=width, heads=heads, key_heads=key_heads)
    writer = GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        value = field.contents()
        for end, factor in widening.settings.items():
            if name == architecture + end:
                value = value * factor if isinstance(value, float) else round(value * factor)
        writer.add_key_value(name, value, field.types[0], inner)
    for tensor in reader.tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        values = widening.widened(values.reshape([int(size) for size in reversed(tensor.shape)]))
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
            continue
        wanted = chosen(kind, tensor.name, layers)
        rows = libgguf.quantize_rows(values, libgguf.GGMLQuantizationType(int(wanted)))
        writer.add_tensor(tensor.name, np.asarray(rows, np.uint8).reshape(len(values), -1), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def chosen(kind: str, name: str, layers: int) -> Type:
    """The type of a matrix."""
    if kind != "Q4_K_M":
        return Type[kind]
    if name == "token_embd.weight":
        return Type.Q6_K
    found = _LAYER.match(name)
    if found is None:
        return Type.Q4_K
    layer, eighth = int(found[1]), layers // 8
    has_more_bits = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return Type.Q6_K if has_more_bits else Type.Q4_K


if __name__ == "__main__":
    main()
