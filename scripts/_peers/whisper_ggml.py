"""Writes a Whisper checkpoint of Hugging Face as a model file of whisper.cpp, with matrices of 8 bits (Q8_0).

    python whisper_ggml.py SOURCE_DIR OUT

whisper.cpp takes the head for the embeddings of tokens, so these become the head of a model that has both.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers.audio_utils import mel_filter_bank

_MAGIC = 0x67676D6C
# Types of ggml, and that of a file with the second version of quantization.
_F32, _F16, _Q8_0, _FILE = 0, 1, 8, 2007
_BLOCK = 32
_NAMES = {
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
}
_ENDS = {
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
}


def main() -> None:
    source, out = map(Path, sys.argv[1:])
    config = json.loads((source / "config.json").read_text())
    weights = load_file(source / "model.safetensors")
    weights["decoder.token_embedding.weight"] = weights.pop(
        "proj_out.weight", weights["model.decoder.embed_tokens.weight"]
    )
    del weights["model.decoder.embed_tokens.weight"]
    with out.open("wb") as file:
        _head(file, config)
        _filters(file, config["num_mel_bins"])
        _vocabulary(file, Tokenizer.from_file(str(source / "tokenizer.json")), config["eos_token_id"])
        for name, values in weights.items():
            _tensor(file, _name(name), values.astype(np.float32))


def _head(file: BinaryIO, config: dict[str, int]) -> None:
    width = config["d_model"]
    sizes = [config["vocab_size"], config["max_source_positions"]]
    sizes += [width, config["encoder_attention_heads"], config["encoder_layers"], config["max_target_positions"]]
    sizes += [width, config["decoder_attention_heads"], config["decoder_layers"], config["num_mel_bins"], _FILE]
    file.write(struct.pack(f"<{1 + len(sizes)}i", _MAGIC, *sizes))


def _filters(file: BinaryIO, num_mels: int) -> None:
    filters = mel_filter_bank(201, num_mels, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney").T
    file.write(struct.pack("<2i", *filters.shape))
    file.write(np.ascontiguousarray(filters, np.float32).tobytes())


def _vocabulary(file: BinaryIO, tokenizer: Tokenizer, num_texts: int) -> None:
    """The bytes of each token of text; whisper.cpp knows the others."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
    file.write(struct.pack("<i", num_texts))
    for id in range(num_texts):
        data = bytes(byte_of[character] for character in tokenizer.id_to_token(id) or "")
        file.write(struct.pack("<i", len(data)) + data)


def _name(name: str) -> str:
    """OpenAI's name of a tensor."""
    name = name.removeprefix("model.")
    for theirs, ours in _ENDS.items():
        name = name.replace(theirs, ours)
    parts = name.split(".layers.")
    if len(parts) == 1:
        return name
    number, _, rest = parts[1].partition(".")
    inner, _, end = rest.rpartition(".")
    return f"{parts[0]}.blocks.{number}.{_NAMES[inner]}.{end}"


def _tensor(file: BinaryIO, name: str, values: np.ndarray) -> None:
    if name.endswith(("conv1.bias", "conv2.bias")):
        values = values.reshape(-1, 1)
        kind, data = _F32, values.tobytes()
    elif values.ndim < 2 or name.endswith("positional_embedding"):
        kind, data = _F32, values.tobytes()
    elif values.ndim > 2:
        kind, data = _F16, values.astype(np.float16).tobytes()
    else:
        kind, data = _Q8_0, _quantized(values)
    file.write(struct.pack("<3i", values.ndim, len(name), kind))
    file.write(struct.pack(f"<{values.ndim}i", *values.shape[::-1]) + name.encode() + data)


def _quantized(values: np.ndarray) -> bytes:
    """Blocks of 32 numbers of 8 bits, each behind its scale in 16 bits."""
    blocks = values.reshape(-1, _BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 127
    made = np.zeros(len(blocks), np.dtype([("scale", "<f2"), ("numbers", "i1", _BLOCK)]))
    made["scale"] = scales[:, 0]
    made["numbers"] = np.round(blocks / np.where(scales == 0, 1, scales))
    return made.tobytes()


if __name__ == "__main__":
    main()
