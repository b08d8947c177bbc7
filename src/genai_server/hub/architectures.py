"""Decides from a model's config.json which model builder can build the model: onnxruntime-genai's
(`check_architecture`) or Microsoft's other builder, mobius (`why_not_mobius`).

For many models that it cannot build, onnxruntime-genai's builder itself ends with a traceback or writes a model that
answers wrongly. The faults listed here are those of version 0.18 with Transformers 5.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from genai_server.errors import ConfigurationError, ModelDirectoryError
from genai_server.model_files.config_files import CONFIG, read_object

_NO_CODE = "its configuration is code in its repository, which is not run (--extra hf_remote=true runs it)"
_TWO_ROPES = "its layers have two kinds of rope, which the model builder cannot read"
_HEAD_SIZES_DIFFER = "the size of its heads differs between layers, which the model builder cannot read"
_LONG_ROPE = "its experts come with a rope of short and long factors, which the model builder does not support"
# Architectures that the builder knows and cannot build on any device.
_FAULTS = {
    "Gemma3ForConditionalGeneration": _TWO_ROPES,
    "Gemma4ForConditionalGeneration": _HEAD_SIZES_DIFFER,
    "Gemma4UnifiedForConditionalGeneration": _HEAD_SIZES_DIFFER,
    "PhiMoEForCausalLM": _LONG_ROPE,
}
# Architectures whose configurations Transformers does not have.
_REMOTE_ARCHITECTURES = {
    "ChatGLMForConditionalGeneration",
    "ChatGLMModel",
    "InternLM2ForCausalLM",
    "Phi3SmallForCausalLM",
    "Phi3VForCausalLM",
    "Phi4MMForCausalLM",
    "VideoChatFlashQwenForCausalLM",
}
_QUANTIZED = ("int4", "int8")
# Decoders whose graphs of mobius 0.1 give the logits of Transformers (docs/export.md); it also builds others wrongly.
_OF_MOBIUS = {
    "ApertusForCausalLM",
    "ArceeForCausalLM",
    "Exaone4ForCausalLM",
    "GraniteMoeForCausalLM",
    "MixtralForCausalLM",
    "Olmo2ForCausalLM",
    "OlmoeForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "SmolLM3ForCausalLM",
    "Starcoder2ForCausalLM",
}
_ROPES_OF_MOBIUS = ("default", "yarn")
# How the builder's source chooses by architecture.
_CHOICE = re.compile(r'architectures\[0\] == "(\w+)"')


def read_source_config(source: Path) -> dict[str, Any]:
    """Return the contents of config.json in `source`, the directory of a model that is to be built. Returns an empty
    dictionary if the file is missing or cannot be read; the builder then reports the error.
    """
    with suppress(ModelDirectoryError):
        return read_object(source / CONFIG)
    return {}


def known_architectures(builder_source: str) -> frozenset[str]:
    """Return the names of the architectures, such as LlamaForCausalLM, that onnxruntime-genai's model builder supports.
    They are searched in `builder_source`, the text of the builder's file builder.py; empty if they are not found there.
    """
    return frozenset(_CHOICE.findall(builder_source))


def check_architecture(
    config: Mapping[str, Any], supported: Collection[str], *, precision: str, device: str, options: Collection[str] = ()
) -> None:
    """Raise ConfigurationError, with the reason, if onnxruntime-genai's model builder cannot build a model correctly.

    `config` is the model's config.json, and `supported` has the architectures that the builder supports. The model is
    to be built in `precision` (such as "int4") for `device`, with `options`, further options of the builder as
    `NAME=VALUE`.
    """
    architecture = _architecture(config)
    if architecture is None:
        return
    reason = _why_not(architecture, config, supported, precision, device, options)
    if reason is not None:
        raise ConfigurationError(f"{architecture} cannot be built for {device} in {precision}: {reason}")


def _why_not(
    architecture: str,
    config: Mapping[str, Any],
    supported: Collection[str],
    precision: str,
    device: str,
    options: Collection[str],
) -> str | None:
    if supported and architecture not in supported:
        return "the model builder of this onnxruntime-genai does not know this architecture"
    if architecture in _REMOTE_ARCHITECTURES and "hf_remote=true" not in options:
        return _NO_CODE
    if architecture == "GraniteMoeHybridForCausalLM":
        if config.get("num_local_experts"):
            return "the model builder leaves out its experts, so that it would answer wrongly"
        if "mamba" in (config.get("layer_types") or config.get("layers_block_type") or ()):
            return "the model builder does not support its Mamba layers"
    if device == "directml":
        return _FAULTS.get(architecture)
    if architecture == "GptOssForCausalLM" and precision in _QUANTIZED and "quantization_config" not in config:
        return "quantized experts are made of the original MXFP4 weights only, which this model lacks"
    if architecture == "SmolLM3ForCausalLM" and _has_layers_without_rope(config):
        return "some of its layers have no rope, for which the model builder needs positions that it does not have"
    return _FAULTS.get(architecture)


def why_not_mobius(config: Mapping[str, Any]) -> str | None:
    """Return the reason why Microsoft's other model builder, mobius, is not used for the model with the config.json
    `config`; None if it can build the model.
    """
    architecture = _architecture(config)
    if architecture not in _OF_MOBIUS:
        return f"{architecture} is none of those whose graphs were compared ({', '.join(sorted(_OF_MOBIUS))})"
    if _has_windows(config):
        return "mobius leaves out that some of its layers see a window only"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPES_OF_MOBIUS:
        return f"its rope ({kind}) was not compared"
    if "quantization_config" in config:
        return "its weights are quantized already"
    return None


def _has_windows(config: Mapping[str, Any]) -> bool:
    """Whether a model has layers with sliding-window attention. `config` is the model's config.json."""
    layers = config.get("layer_types")
    if isinstance(layers, list):
        return "sliding_attention" in layers
    return bool(config.get("sliding_window")) and config.get("use_sliding_window") is not False


def _has_layers_without_rope(config: Mapping[str, Any]) -> bool:
    """Whether a model of the family SmolLM3 has layers without rotary position embeddings (rope). By default, every
    fourth layer has none.
    """
    layers = config.get("no_rope_layers")
    return 0 in layers if isinstance(layers, list) else bool(config.get("no_rope_layer_interval", 4))


def count_weights(config: Mapping[str, Any]) -> int | None:
    """Return an estimate of a decoder's number of weights, from the sizes in its config.json (`config`); None if the
    file lacks one of them.
    """
    text = config.get("text_config")
    section = text if isinstance(text, dict) else config
    try:
        width, layers, words = (int(section[name]) for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
        heads = int(section["num_attention_heads"])
        shared = int(section.get("num_key_value_heads") or heads)
        inner = int(section.get("head_dim") or width // heads)
        between = int(section.get("moe_intermediate_size") or section["intermediate_size"])
        experts = int(section.get("num_local_experts") or section.get("num_experts") or 1)
        tables = 1 if section.get("tie_word_embeddings", config.get("tie_word_embeddings")) else 2
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return words * width * tables + layers * width * (2 * inner * (heads + shared) + 3 * between * experts)


def has_draft_head(config: Mapping[str, Any]) -> bool:
    """Whether a model has a head for multi-token prediction (MTP), which drafts tokens. `config` is the model's
    config.json.
    """
    text = config.get("text_config")
    sections = [config, text if isinstance(text, dict) else {}]
    return any(section.get("mtp_num_hidden_layers") for section in sections)


def _architecture(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
