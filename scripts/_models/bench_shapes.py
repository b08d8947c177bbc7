"""Shapes of published models for speed work with random weights.

Imported, it needs nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BenchShape:
    """`config` is a class of transformers; `settings` are its, or its text model's if there are `outer` ones.

    `options` go to the model builder. `layer_types` repeat over the layers.
    """

    config: str
    settings: dict[str, Any]
    layer_types: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    outer: dict[str, Any] | None = None
    takes_images: bool = False

    def text_settings(self, layers: int | None) -> dict[str, Any]:
        """The settings, with another number of layers if it is given."""
        number = layers or self.settings["num_hidden_layers"]
        settings = self.settings | {"num_hidden_layers": number}
        if self.layer_types:
            settings["layer_types"] = [self.layer_types[layer % len(self.layer_types)] for layer in range(number)]
        return settings


# Behind the tokenizer's three others, in this order.
IMAGE_TOKENS = {"vision_start_token_id": 3, "vision_end_token_id": 4, "image_token_id": 5, "video_token_id": 6}
_QWEN_2: dict[str, Any] = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}
_LFM2: dict[str, Any] = {"conv_L_cache": 3, "norm_eps": 1e-5}

SHAPES = {
    # Qwen 2 of 0.4 billion parameters.
    "dense": BenchShape("Qwen2Config", _QWEN_2),
    # The same with a window in every second layer.
    "windows": BenchShape(
        "Qwen2Config",
        _QWEN_2 | {"use_sliding_window": True, "sliding_window": 128},
        layer_types=("sliding_attention", "full_attention"),
    ),
    # LFM2-350M, with attention in each third layer.
    "lfm2": BenchShape(
        "Lfm2Config",
        _LFM2
        | {
            "hidden_size": 1024,
            "num_hidden_layers": 16,
            "intermediate_size": 4608,
            "block_auto_adjust_ff_dim": False,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
        },
        layer_types=("conv", "conv", "full_attention"),
    ),
    # Qwen 3.5 of 0.8 billion parameters with its own vocabulary, and its head for multi-token prediction.
    "qwen-3.5": BenchShape(
        "Qwen3_5Config",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "intermediate_size": 3584,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "mtp_num_hidden_layers": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10],
                "mrope_interleaved": True,
            },
        },
        layer_types=("linear_attention",) * 3 + ("full_attention",),
        outer={
            "vision_config": {
                "depth": 1,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_heads": 2,
                "out_hidden_size": 1024,
                "num_position_embeddings": 64,
                "patch_size": 16,
            }
        },
    ),
    # Qwen 3-VL with the text part of Qwen 3 of 0.6 billion parameters, and a smaller vision part (bench_vision.py).
    "qwen-3-vl": BenchShape(
        "Qwen3VLConfig",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "intermediate_size": 3072,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5_000_000.0,
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
        },
        options=("exclude_embeds=true",),
        outer={
            "vision_config": {
                "depth": 1,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_heads": 2,
                "out_hidden_size": 1024,
                "num_position_embeddings": 64,
                "patch_size": 16,
                "deepstack_visual_indexes": [0],
            },
            **IMAGE_TOKENS,
        },
        takes_images=True,
    ),
    # LFM2-8B-A1B: 32 experts, of which a token takes four.
    "moe": BenchShape(
        "Lfm2MoeConfig",
        _LFM2
        | {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "num_dense_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
        layer_types=("conv", "conv", "full_attention", "conv"),
    ),
}

# Settings of WhisperConfig. Their vocabulary is Whisper's: 50,257 tokens of text, 99 languages, 1,501 timestamps.
SPEECH_SHAPES: dict[str, dict[str, Any]] = {
    name: {
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_attention_heads": width // 64,
        "decoder_attention_heads": width // 64,
        "encoder_ffn_dim": 4 * width,
        "decoder_ffn_dim": 4 * width,
    }
    for name, width, layers in (("whisper-base", 512, 6), ("whisper-small", 768, 12))
}
SPEECH_TEXT_TOKENS = 50_257
