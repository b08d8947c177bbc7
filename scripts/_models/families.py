"""Small models with random weights, one for each architecture that users name: real structure, small widths.

Imported, it needs nothing but the standard library. As a program (`python -m _models.families NAME OUT`) it runs in
`.venv-models` and writes the Hugging Face directory of one family.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The builder takes any linear layer with this many outputs for the head, so no other layer may have them.
VOCABULARY = 510
CONTEXT, WINDOW, SHORT_CONTEXT = 512, 32, 128
END_OF_TEXT, TURN_END = 0, 2  # as in tokenizer.py
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": TURN_END,
    "pad_token_id": END_OF_TEXT,
    "tie_word_embeddings": False,
}


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


@dataclass(frozen=True)
class Family:
    """One architecture: what `structure` is checked, and the `settings` of its configuration that are not _COMMON.

    `options` go to the model builder. Large `embeddings` keep each token's own mark, so that different texts go on
    differently; where they are multiplied or tied they must be small, or every token would repeat itself.
    """

    title: str
    config: str
    structure: str
    settings: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    embeddings: float = 0.3


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

FAMILIES = {
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


def main() -> None:
    make(FAMILIES[sys.argv[1]], Path(sys.argv[2]))


def make(family: Family, out: Path) -> None:
    """Write configuration, weights and tokenizer."""
    import torch
    import transformers

    from _models.tokenizer import save_tokenizer, train_tokenizer

    torch.manual_seed(7)
    config = getattr(transformers, family.config)(**_COMMON | family.settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    wide = [name for name, part in model.named_modules() if getattr(part, "out_features", 0) == config.vocab_size]
    assert wide == ["lm_head"], wide
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomize(name, parameter, family.embeddings)
    model.generation_config.eos_token_id = TURN_END
    model.save_pretrained(out)
    save_tokenizer(train_tokenizer([__doc__ or ""], config.vocab_size), out, TEMPLATE, CONTEXT)


def _randomize(name: str, parameter: Any, embeddings: float) -> None:
    """Weights with which every part of the model moves the logits, and the greedy choice has a margin."""
    if "norm" in name:
        parameter.add_(parameter.new_empty(parameter.shape).uniform_(-0.4, 0.4))
    elif parameter.ndim == 1:
        parameter.normal_(std=0.5)
    elif "embed" in name:
        parameter.normal_(std=embeddings)
    else:
        # What a layer adds must outweigh the token that it started from.
        gain = 3.0 if "o_proj" in name or "down_proj" in name or "lm_head" in name else 1.5
        parameter.normal_(std=gain / parameter.shape[-1] ** 0.5)


if __name__ == "__main__":
    main()
