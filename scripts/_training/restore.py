"""The weights of a demo model directory as a PyTorch model again, as quantization has left them.

Directories are those that the model builder has made of a model of the same shape, with 8 bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper
from transformers import LlamaForCausalLM, WhisperForConditionalGeneration

Array = npt.NDArray[np.float32]
# Parts of a layer of Whisper, and their names in the builder's graphs.
_MLP = {"fc1": "mlp.fc1", "fc2": "mlp.fc2", "final_layer_norm": "post_attention_layernorm"}
_ENCODER = {"self_attn.out_proj": "attn.o_proj", "self_attn_layer_norm": "input_layernorm", **_MLP}
_DECODER = {
    "self_attn.q_proj": "attn.q_proj",
    "self_attn.k_proj": "attn.k_proj",
    "self_attn.v_proj": "attn.v_proj",
    "self_attn.out_proj": "attn.o_proj",
    "self_attn_layer_norm": "self_attn_layernorm",
    "encoder_attn.q_proj": "cross_attn.q_proj",
    "encoder_attn.out_proj": "cross_attn.o_proj",
    "encoder_attn_layer_norm": "cross_attn_layernorm",
    **_MLP,
}
_SOUND = {"encoder_attn.k_proj": "attn.cross.k_proj", "encoder_attn.v_proj": "attn.cross.v_proj"}


def restore(directory: Path, model: LlamaForCausalLM) -> None:
    """Fill a model from a directory. Raises KeyError for a weight that the directory lacks."""
    stored = _stored(directory / "model.onnx")
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
    _load(model, weights)


def restore_speech(directory: Path, model: WhisperForConditionalGeneration) -> None:
    """The same for a model of speech, with its two graphs."""
    encoder, decoder = _stored(directory / "encoder.onnx"), _stored(directory / "decoder.onnx")
    weights = {"proj_out.weight": _matrix(decoder, "lm_head")}
    for side, stored in (("encoder", encoder), ("decoder", decoder)):
        weights |= {f"model.{name}": values for name, values in stored.items() if name.startswith(f"{side}.")}
        last = f"model.layers.{model.config.encoder_layers}.final_norm_layernorm"
        weights |= _parts(stored, {f"model.{side}.layer_norm": last})
    for index in range(model.config.encoder_layers):
        at, source = f"model.encoder.layers.{index}", f"model.layers.{index}"
        weights |= _parts(encoder, {f"{at}.{name}": f"{source}.{other}" for name, other in _ENCODER.items()})
        # Keys have no bias.
        for part, weight, bias in zip(
            ("q_proj", "k_proj", "v_proj"),
            np.split(encoder[f"{source}.attn.qkv_proj.weight"].T, 3),
            np.split(encoder[f"{source}.attn.qkv_proj.bias"], 3),
            strict=True,
        ):
            weights[f"{at}.self_attn.{part}.weight"] = weight
            if part != "k_proj":
                weights[f"{at}.self_attn.{part}.bias"] = bias
        at = f"model.decoder.layers.{index}"
        weights |= _parts(decoder, {f"{at}.{name}": f"{source}.{other}" for name, other in _DECODER.items()})
        # The encoder's graph computes keys and values of the sound.
        weights |= _parts(encoder, {f"{at}.{name}": f"{source}.{other}" for name, other in _SOUND.items()})
    _load(model, weights)


def _parts(stored: dict[str, Array], names: dict[str, str]) -> dict[str, Array]:
    """The weights and biases of norms and matrices of a graph, which are named in the model as `names` says."""
    found = {}
    for name, source in names.items():
        if f"{source}.MatMul.weight_Q8" in stored:
            found[f"{name}.weight"] = _matrix(stored, source)
        for ours, theirs in (("weight", "weight"), ("bias", "bias"), ("bias", "Add.bias")):
            if f"{source}.{theirs}" in stored:
                found[f"{name}.{ours}"] = stored[f"{source}.{theirs}"]
    return found


def _stored(path: Path) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def _load(model: torch.nn.Module, weights: dict[str, Array]) -> None:
    model.load_state_dict({name: torch.from_numpy(np.array(weight)) for name, weight in weights.items()})


def _matrix(stored: dict[str, Array], name: str) -> Array:
    """Undo MatMulNBits' symmetric 8 bits: blocks of `[rows, blocks, block size]` around 128, a scale for each."""
    blocks = stored[f"{name}.MatMul.weight_Q8"].astype(np.float32) - 128
    scales = stored[f"{name}.MatMul.weight_scales"].reshape(*blocks.shape[:2], 1)
    return (blocks * scales).reshape(len(blocks), -1)
