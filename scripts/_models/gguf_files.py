"""GGUF files of small models, as llama.cpp's converter writes them: names, order of rows, metadata and tokenizer.

The module needs `.venv-models`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from _models.family import TEMPLATE
from _models.sentencepiece import END, START, UNKNOWN, write_sentencepiece

# Architectures by the model_type of Transformers.
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "lfm2": gguf.MODEL_ARCH.LFM2,
}
# Values of a block with K. The library does not write such blocks, so random ones stand for the matrix.
_BLOCK = 256
_RANDOM_BLOCKS = (Type.Q4_K, Type.Q6_K)
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


@dataclass(frozen=True)
class GgufFormat:
    """How a file's matrices are stored."""

    title: str
    family: str
    type: Type = Type.F32
    # With a tokenizer like SentencePiece's.
    pieces: bool = False


def write_gguf(source: Path, form: GgufFormat, path: Path, reference: Path) -> None:
    """Write a model as a GGUF file at `path`, and its values in 32 bits as a model of Transformers in `reference`.

    The reference has the file's tokenizer, too.

    """
    kind, config = form.type, json.loads((source / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _describe(writer, config)
    shutil.copytree(source, reference)
    if form.pieces:
        _add_pieces(writer, config, reference)
    else:
        _add_tokenizer(writer, source)
    if (config.get("rope_parameters") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama_3_factors(config))
    same = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        array = tensor.float().numpy()
        stored = _stored(name, array, config)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        is_matrix = array.ndim == 2
        if is_matrix and kind in _RANDOM_BLOCKS and array.shape[1] % _BLOCK == 0:
            blocks = _random_blocks(kind, array.shape)
            writer.add_tensor(target, blocks, raw_dtype=kind)
            array = gguf.dequantize(blocks, kind)
        elif is_matrix and kind not in (Type.F32, Type.F16, *_RANDOM_BLOCKS):
            writer.add_tensor(target, gguf.quantize(stored, kind), raw_dtype=kind)
            array = gguf.dequantize(gguf.quantize(array, kind), kind)
        elif is_matrix and kind is Type.F16:
            writer.add_tensor(target, stored.astype(np.float16))
            array = array.astype(np.float16).astype(np.float32)
        else:
            writer.add_tensor(target, stored)
        same[name] = torch.from_numpy(np.ascontiguousarray(array))
    save_file(same, reference / "model.safetensors", {"format": "pt"})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random_blocks(kind: Type, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Blocks for a matrix [outputs, inputs], with scales of a usual size."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = np.random.default_rng(3).integers(0, 256, (shape[0], shape[1] // _BLOCK, size), np.uint8)
    if kind is Type.Q4_K:  # scale, and scale of the offsets
        blocks[..., :4] = np.array([1e-4, 7.5e-4], np.float16).view(np.uint8)
    else:
        blocks[..., -2:] = np.array([2e-5], np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def _describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    key_heads: int | list[int] = config["num_key_value_heads"]
    if config["model_type"] == "lfm2":
        of_attention = config["num_key_value_heads"]
        key_heads = [of_attention if kind == "full_attention" else 0 for kind in config["layer_types"]]
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"] if "rms_norm_eps" in config else config["norm_eps"])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        writer.add_sliding_window(config["sliding_window"])


def _add_pieces(writer: gguf.GGUFWriter, config: dict[str, Any], reference: Path) -> None:
    """A tokenizer like SentencePiece's in the place of the model's own."""
    prefix = config["model_type"] != "gemma2"
    text = Path(__file__).read_text(encoding="utf-8")
    found = write_sentencepiece(text, config["vocab_size"], reference, TEMPLATE, prefix=prefix)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(found.tokens)
    writer.add_token_scores(found.scores)
    writer.add_token_types(found.types)
    writer.add_unk_token_id(found.tokens.index(UNKNOWN))
    writer.add_bos_token_id(found.tokens.index(START))
    writer.add_eos_token_id(found.tokens.index(END))
    writer.add_pad_token_id(found.tokens.index(UNKNOWN))
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(prefix)
    writer.add_chat_template(TEMPLATE)


def _add_tokenizer(writer: gguf.GGUFWriter, source: Path) -> None:
    """The byte-level tokenizer, which splits text as Qwen 2's does."""
    found = json.loads((source / "tokenizer.json").read_text())
    special = {token["id"] for token in found["added_tokens"] if token["special"]}
    vocabulary = {token["content"]: token["id"] for token in found["added_tokens"]} | found["model"]["vocab"]
    tokens = sorted(vocabulary, key=lambda token: int(vocabulary[token]))
    config = json.loads((source / "tokenizer_config.json").read_text())
    size = json.loads((source / "config.json").read_text())["vocab_size"]
    types = [_CONTROL if number in special else _NORMAL for number in range(len(tokens))]
    types += [_UNUSED] * (size - len(tokens))
    tokens += [f"[PAD{number}]" for number in range(len(tokens), size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in found["model"]["merges"]])
    writer.add_eos_token_id(vocabulary[config["eos_token"]])
    writer.add_pad_token_id(vocabulary[config["pad_token"]])
    writer.add_add_bos_token(False)
    template = source / "chat_template.jinja"
    writer.add_chat_template(template.read_text() if template.is_file() else config["chat_template"])


def _stored(name: str, array: NDArray[Any], config: dict[str, Any]) -> NDArray[Any]:
    """A tensor as llama.cpp keeps it."""
    kind = config["model_type"]
    if kind in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
    if kind == "gemma2" and name.endswith("norm.weight"):
        return array + np.float32(1)
    return array.squeeze(1) if "conv.conv" in name else array


def _llama_3_factors(config: dict[str, Any]) -> NDArray[np.float32]:
    """The factors of Llama 3's rope, by which a pair of dimensions turns more slowly."""
    rope = config["rope_parameters"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    context = rope["original_max_position_embeddings"]
    low, high = context / rope["low_freq_factor"], context / rope["high_freq_factor"]
    factors = []
    for index in range(0, head, 2):
        wave = 2 * np.pi * rope["rope_theta"] ** (index / head)
        share = (context / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        slow = 1 / ((1 - share) / rope["factor"] + share)
        factors.append(1.0 if wave < high else rope["factor"] if wave > low else slow)
    return np.array(factors, np.float32)


FILES = (
    GgufFormat("F32", "llama-2", pieces=True),
    GgufFormat("F16", "llama-3", Type.F16),
    GgufFormat("Q4_0", "llama-3", Type.Q4_0),
    GgufFormat("Q4_1", "mistral", Type.Q4_1),
    GgufFormat("Q8_0", "qwen-2.5", Type.Q8_0),
    GgufFormat("Q5_0", "qwen-3", Type.Q5_0),
    GgufFormat("Q4_K", "qwen-3", Type.Q4_K),
    GgufFormat("Q6_K", "qwen-2.5", Type.Q6_K),
    GgufFormat("Q4_1", "phi-3-4k", Type.Q4_1),
    GgufFormat("Q8_0", "gemma-2-mask", Type.Q8_0, pieces=True),
    GgufFormat("Q4_0", "lfm2", Type.Q4_0),
)
