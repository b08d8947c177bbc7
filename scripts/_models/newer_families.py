"""Architectures of 2025 and 2026 with small random weights: hybrids, mixtures of experts, text of image models."""

from __future__ import annotations

from typing import Any

from _models.family import CONTEXT, LEFT_OUT, SHORT_CONTEXT, WINDOW, Family

_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
_IMAGE_TOKENS = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 3, "vision_end_token_id": 4}
_QWEN_VISION = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 64,
    "patch_size": 16,
}
# Three linear layers before each one with attention.
_QWEN_3_5: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 64,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "rope_parameters": _ROPE | {"partial_rotary_factor": 0.5, "mrope_section": [6, 5, 5], "mrope_interleaved": True},
}
_QWEN_3_5_OUTER = {"vision_config": _QWEN_VISION, **_IMAGE_TOKENS}
# Without the head for drafts.
_NO_DRAFTS = ("exclude_mtp=true",)
_LFM2: dict[str, Any] = {
    "num_hidden_layers": 4,
    "conv_L_cache": 3,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
}
_LFM2_DENSE = _LFM2 | {"block_auto_adjust_ff_dim": False, "norm_eps": 1e-5}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_PIXTRAL = {
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 32,
        "image_size": 64,
        "patch_size": 16,
    },
    "image_token_index": 5,
    "spatial_merge_size": 2,
}
_GRANITE_4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "shared_intermediate_size": 256,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "layer_types": ["attention"] * 4,
    "position_embedding_type": "rope",
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.03125,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_expand": 2,
}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 16,
    "long_factor": [2.0] * 16,
    "original_max_position_embeddings": SHORT_CONTEXT,
    "short_mscale": 1.0,
    "long_mscale": 1.1,
}

NEWER = {
    "qwen-3.5": Family(
        "Qwen 3.5 (text)",
        "Qwen3_5Config",
        "three layers of four are linear attention with convolutions; positions on three axes",
        _QWEN_3_5,
        _NO_DRAFTS,
        outer=_QWEN_3_5_OUTER,
    ),
    "qwen-3.5-moe": Family(
        "Qwen 3.5 MoE (text)",
        "Qwen3_5MoeConfig",
        "as Qwen 3.5, two of eight experts and a shared one",
        _QWEN_3_5 | _EXPERTS | {"shared_expert_intermediate_size": 64, "intermediate_size": LEFT_OUT},
        _NO_DRAFTS,
        outer=_QWEN_3_5_OUTER,
    ),
    "lfm2": Family(
        "LFM2, LFM2.5",
        "Lfm2Config",
        "three layers of four are convolutions",
        _LFM2_DENSE,
    ),
    "lfm2-vl": Family(
        "LFM2-VL (text)",
        "Lfm2VlConfig",
        "as LFM2",
        _LFM2_DENSE | {"model_type": "lfm2"},
        outer={
            "vision_config": {
                "model_type": "siglip2_vision_model",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_patches": 64,
                "patch_size": 16,
            },
            "image_token_id": 5,
            "projector_hidden_size": 64,
        },
    ),
    "lfm2-moe": Family(
        "LFM2 MoE",
        "Lfm2MoeConfig",
        "as LFM2, two of eight experts",
        _LFM2 | _EXPERTS | {"num_dense_layers": 1},
    ),
    "qwen-2.5-vl": Family(
        "Qwen 2.5-VL (text)",
        "Qwen2_5_VLConfig",
        "positions on three axes",
        {"rope_parameters": _ROPE | {"mrope_section": [4, 6, 6]}},
        outer={
            "vision_config": {
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_heads": 2,
                "out_hidden_size": 128,
                "fullatt_block_indexes": [1],
                "window_size": 112,
            },
            **_IMAGE_TOKENS,
        },
    ),
    "qwen-3-vl": Family(
        "Qwen 3-VL (text)",
        "Qwen3VLConfig",
        "positions on three axes, norms on queries and keys",
        {"head_dim": 64, "rope_parameters": _ROPE | {"mrope_section": [12, 10, 10], "mrope_interleaved": True}},
        outer={"vision_config": _QWEN_VISION | {"deepstack_visual_indexes": [0, 1]}, **_IMAGE_TOKENS},
    ),
    "mistral-3": Family(
        "Mistral Small 3.1, 3.2 (text)",
        "Mistral3Config",
        "grouped heads of their own size",
        {"model_type": "mistral", "head_dim": 64},
        outer=_PIXTRAL,
    ),
    "ministral-3": Family(
        "Ministral 3 (text)",
        "Mistral3Config",
        "scaled rope, a scale of queries that the builder leaves out",
        {
            "model_type": "ministral3",
            "head_dim": 64,
            "max_position_embeddings": 4 * CONTEXT,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": CONTEXT,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        outer=_PIXTRAL,
    ),
    "gpt-oss": Family(
        "gpt-oss",
        "GptOssConfig",
        "a sink for each head, every second layer keeps a window only, two of eight experts",
        {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "intermediate_size": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "granite-4": Family(
        "Granite 4 (dense)", "GraniteMoeHybridConfig", "multipliers, a shared MLP", _GRANITE_4, embeddings=0.05
    ),
    "granite-4-hybrid": Family(
        "Granite 4 (hybrid)",
        "GraniteMoeHybridConfig",
        "three layers of four are Mamba layers",
        _GRANITE_4 | {"layer_types": ["mamba"] * 3 + ["attention"]},
        embeddings=0.05,
    ),
    "ernie-4.5": Family(
        "Ernie 4.5 (dense)", "Ernie4_5Config", "rope over neighboring pairs", {"head_dim": 32, "use_bias": False}
    ),
    "hunyuan": Family(
        "Hunyuan (dense)",
        "HunYuanDenseV1Config",
        "norms on queries and keys behind the rope",
        {
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 1000.0,
                "factor": 1.0,
                "rope_theta": 10_000.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 0.0,
            },
        },
    ),
    "nemotron": Family(
        "Nemotron",
        "NemotronConfig",
        "rope over part of a head",
        {
            "head_dim": 32,
            "partial_rotary_factor": 0.5,
            "rope_parameters": _ROPE | {"partial_rotary_factor": 0.5},
        },
    ),
    "olmo": Family("OLMo", "OlmoConfig", "norms without weights", {}),
    "olmo-2": Family("OLMo 2", "Olmo2Config", "norms behind attention and MLP", {}),
    "olmo-3": Family("OLMo 3", "Olmo3Config", "norms behind attention and MLP, windows", {"sliding_window": WINDOW}),
    "qwen-3-moe": Family("Qwen 3 MoE", "Qwen3MoeConfig", "two of eight experts", {"head_dim": 64} | _EXPERTS),
    "mixtral": Family("Mixtral", "MixtralConfig", "two of four experts", {"num_local_experts": 4}),
    "phi-moe": Family(
        "Phi-3.5-MoE",
        "PhimoeConfig",
        "rope with short and long factors, two of four experts",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "original_max_position_embeddings": SHORT_CONTEXT,
            "rope_parameters": _LONG_ROPE,
            "sliding_window": CONTEXT,
        },
        architecture="PhiMoEForCausalLM",
    ),
}
