"""Small models with random weights, one for each architecture that users name: real structure, small widths.

Imported, it needs nothing but the standard library. As a program (`python -m _models.families NAME OUT`) it runs in
`.venv-models` and writes the Hugging Face directory of one family.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from _models.family import CONTEXT, SHORT_CONTEXT, WINDOW, Family, make
from _models.newer_families import NEWER


def long_rope(rotated: int) -> dict[str, Any]:
    """Rope factors for `rotated` dimensions of a head, which change beyond SHORT_CONTEXT."""
    half = rotated // 2
    return {
        "rope_type": "longrope",
        "type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0 + 0.02 * index for index in range(half)],
        "long_factor": [1.0 + 0.3 * index for index in range(half)],
        "original_max_position_embeddings": SHORT_CONTEXT,
    }


_PHI_3_4K = {"num_key_value_heads": 4, "sliding_window": WINDOW - 1, "original_max_position_embeddings": CONTEXT}
_GEMMA_2 = {
    "num_hidden_layers": 4,
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "tie_word_embeddings": True,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 1.5,
}
_GEMMA_3 = {
    "num_hidden_layers": 4,
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
    "num_key_value_heads": 1,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "tie_word_embeddings": True,
}
# How the builder wrote windows before it could keep caches of their size, and how published directories have them.
_IN_THE_MASK = ("windowed_kv_cache=false",)
_ALL_WINDOWED = {"layer_types": ["sliding_attention"] * 3}

FAMILIES: dict[str, Family] = {
    "llama-2": Family(
        "Llama 2, CodeLlama",
        "LlamaConfig",
        "as many heads of keys as of queries",
        {"num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    ),
    "llama-3": Family(
        "Llama 3, 3.1, 3.2, 3.3",
        "LlamaConfig",
        "grouped heads, scaled rope, tied embeddings",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": SHORT_CONTEXT,
            },
        },
    ),
    "mistral": Family(
        "Mistral 7B v0.2, v0.3, Nemo",
        "MistralConfig",
        "grouped heads of their own size",
        {"sliding_window": None, "head_dim": 64},
    ),
    "mistral-window": Family(
        "Mistral 7B v0.1", "MistralConfig", "a window that the builder leaves out", {"sliding_window": WINDOW}
    ),
    "mistral-window-mask": Family(
        "Mistral 7B v0.1, older builders",
        "MistralConfig",
        "window in the mask",
        {"sliding_window": WINDOW} | _ALL_WINDOWED,
        _IN_THE_MASK,
    ),
    "qwen-2.5": Family(
        "Qwen 2.5",
        "Qwen2Config",
        "biases, a window that is switched off, tied embeddings",
        {"sliding_window": WINDOW, "use_sliding_window": False, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "qwen-3": Family(
        "Qwen 3", "Qwen3Config", "norms on queries and keys", {"head_dim": 64, "tie_word_embeddings": True}
    ),
    "phi-2": Family(
        "Phi-2",
        "PhiConfig",
        "attention and MLP side by side, biases, rope over part of a head",
        {
            "num_key_value_heads": 4,
            "partial_rotary_factor": 0.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        },
        embeddings=1.0,
        biases=0.05,
    ),
    "phi-3-4k": Family(
        "Phi-3-mini-4k", "Phi3Config", "fused projections, a window that the builder leaves out", _PHI_3_4K
    ),
    "phi-3-4k-mask": Family(
        "Phi-3-mini-4k, older builders",
        "Phi3Config",
        "fused projections, window in the mask",
        _PHI_3_4K | _ALL_WINDOWED,
        _IN_THE_MASK,
    ),
    "phi-3-128k": Family(
        "Phi-3-mini-128k, Phi-3.5-mini",
        "Phi3Config",
        "rope with short and long factors",
        {
            "num_key_value_heads": 4,
            "sliding_window": CONTEXT,
            "original_max_position_embeddings": SHORT_CONTEXT,
            "rope_parameters": long_rope(32),
        },
    ),
    "phi-4-mini": Family(
        "Phi-4-mini",
        "Phi3Config",
        "rope with short and long factors over part of a head, grouped heads",
        {
            "hidden_size": 192,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "sliding_window": CONTEXT,
            "partial_rotary_factor": 0.75,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": SHORT_CONTEXT,
            "rope_parameters": long_rope(48) | {"partial_rotary_factor": 0.75},
        },
    ),
    "gemma-1": Family(
        "Gemma 1",
        "GemmaConfig",
        "one head of keys, tied and multiplied embeddings",
        {
            "num_key_value_heads": 1,
            "head_dim": 64,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
        },
        embeddings=0.1,
    ),
    "gemma-2": Family(
        "Gemma 2",
        "Gemma2Config",
        "soft caps, every second layer keeps a window only",
        _GEMMA_2,
        embeddings=0.05,
    ),
    "gemma-2-mask": Family(
        "Gemma 2, older builders",
        "Gemma2Config",
        "soft caps, window in the mask of every second layer",
        _GEMMA_2,
        _IN_THE_MASK,
        embeddings=0.05,
    ),
    "gemma-3": Family(
        "Gemma 3 (text)",
        "Gemma3TextConfig",
        "norms on queries and keys, three layers of four keep a window only, two ropes",
        _GEMMA_3,
        embeddings=0.05,
    ),
    "gemma-3-mask": Family(
        "Gemma 3 (text), older builders",
        "Gemma3TextConfig",
        "norms on queries and keys, window in the mask of three layers of four, two ropes",
        _GEMMA_3,
        _IN_THE_MASK,
        embeddings=0.05,
    ),
    "smollm-3": Family(
        "SmolLM3",
        "SmolLM3Config",
        "no rope in every fourth layer",
        {"num_hidden_layers": 4, "no_rope_layer_interval": 4, "tie_word_embeddings": True},
    ),
    "granite": Family(
        "Granite 3",
        "GraniteConfig",
        "multipliers on embeddings, attention, residuals and logits",
        {
            "tie_word_embeddings": True,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.03125,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
        embeddings=0.05,
    ),
}
FAMILIES |= NEWER


def main() -> None:
    make(FAMILIES[sys.argv[1]], Path(sys.argv[2]))


if __name__ == "__main__":
    main()
