"""Writes a GGUF file of a Llama anew with its matrices in another type, rounded by llama.cpp's own functions (libgguf).

    python -m _models.requantized_gguf FILE TYPE OUT

A type is one of ggml's whose blocks divide the rows of the model. It runs in `.venv-models`.
"""

from __future__ import annotations

import sys
from typing import Any

import libgguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize


def main() -> None:
    path, kind, out = sys.argv[1:]
    reader: Any = GGUFReader(path)
    wanted = Type[kind]
    writer = GGUFWriter(out, str(reader.get_field("general.architecture").contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        values = values.reshape([int(size) for size in reversed(tensor.shape)])
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
            continue
        rows = libgguf.quantize_rows(values, libgguf.GGMLQuantizationType(int(wanted)))
        writer.add_tensor(tensor.name, np.asarray(rows, np.uint8).reshape(len(values), -1), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
