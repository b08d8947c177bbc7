"""The weights of a demo model directory as a PyTorch model again, as quantization has left them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper
from transformers import LlamaForCausalLM

Array = npt.NDArray[np.float32]


def restore(directory: Path, model: LlamaForCausalLM) -> None:
    """Fill a model of the same shape from a directory that the model builder has made of one with 8 bits.

    Raises KeyError for a weight that the directory lacks.
    """
    graph = onnx.load(directory / "model.onnx").graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    config = model.config
    queries, keys = (config.head_dim * n for n in (config.num_attention_heads, config.num_key_value_heads))
    weights = {
        "model.embed_tokens.weight": stored["model.embed_tokens.weight"],
        "lm_head.weight": _matrix(stored, "lm_head"),
    }
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        parts = np.split(_matrix(stored, f"{layer}.attn.qkv_proj"), [queries, queries + keys])
        for name, part in zip("qkv", parts, strict=True):
            weights[f"{layer}.self_attn.{name}_proj.weight"] = part
        weights[f"{layer}.self_attn.o_proj.weight"] = _matrix(stored, f"{layer}.attn.o_proj")
        for name in ("gate_proj", "up_proj", "down_proj"):
            weights[f"{layer}.mlp.{name}.weight"] = _matrix(stored, f"{layer}.mlp.{name}")
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}.{name}.weight"] = stored[f"{layer}.{name}.weight"]
    weights["model.norm.weight"] = stored[f"model.layers.{config.num_hidden_layers}.final_norm_layernorm.weight"]
    model.load_state_dict({name: torch.from_numpy(np.array(weight)) for name, weight in weights.items()})


def _matrix(stored: dict[str, Array], name: str) -> Array:
    """Undo MatMulNBits' symmetric 8 bits: blocks of `[rows, blocks, block size]` around 128, a scale for each."""
    blocks = stored[f"{name}.MatMul.weight_Q8"].astype(np.float32) - 128
    scales = stored[f"{name}.MatMul.weight_scales"].reshape(*blocks.shape[:2], 1)
    return (blocks * scales).reshape(len(blocks), -1)
