"""Build the models of tests/built_models: graphs as onnxruntime-genai's builder writes them, with tiny random weights.

The names in a graph that a test makes could change together with the code that reads them; the names in these cannot.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from _models.environment import REPOSITORY, ensure_environment
from _models.export import export
from _models.families import FAMILIES, long_rope
from _models.family import Family, make
from _models.vision_families import VISION_FAMILIES

OUT = REPOSITORY / "tests" / "built_models"
GRAPH, OTHERS = ["model.onnx", "genai_config.json"], ["model.onnx.data", "tokenizer.json", "tokenizer_config.json"]
HEAD = ["mtp.onnx", "mtp.onnx.data"]
OF_SOUNDS = ["speech.onnx", "embedding.onnx", "chat_template.jinja"]
OF_IMAGES = ["vision.onnx", "embedding.onnx", "processor_config.json", "chat_template.jinja"]
_TINY: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}
# Small enough for a repository with their weights.
_NARROW = {"hidden_size": 32}
_THREE_AXES = {"rope_type": "default", "rope_theta": 10_000.0}
_QWEN_3_5 = _NARROW | {
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": _THREE_AXES
    | {"partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2], "mrope_interleaved": True},
}
# A family, its settings besides _TINY, and whether the model is to run.
MODELS: dict[str, tuple[Family, dict[str, Any], bool]] = {
    "phi-3-128k": (FAMILIES["phi-3-128k"], {"num_key_value_heads": 2}, True),
    # Its operator takes cosines for a multiple of 8 dimensions, which three quarters of so small a head are not.
    "phi-4-mini": (
        FAMILIES["phi-4-mini"],
        {"partial_rotary_factor": 0.5, "rope_parameters": long_rope(16) | {"partial_rotary_factor": 0.5}},
        True,
    ),
    "llama-3": (FAMILIES["llama-3"], {}, False),
    "gemma-2": (FAMILIES["gemma-2"], {"num_hidden_layers": 4}, False),
    "llama-3-pruned": (replace(FAMILIES["llama-3"], options=("prune_lm_head=true",)), {}, False),
    "qwen-3-vl": (
        FAMILIES["qwen-3-vl"],
        {"rope_parameters": _THREE_AXES | {"mrope_section": [12, 10, 10]}},
        False,
    ),
    "gpt-oss": (
        FAMILIES["gpt-oss"],
        {"num_local_experts": 4, "layer_types": ["sliding_attention", "full_attention"]},
        False,
    ),
    "lfm2": (FAMILIES["lfm2"], _NARROW | {"layer_types": ["conv", "full_attention"]}, True),
    "qwen-3.5": (replace(FAMILIES["qwen-3.5"], options=()), _QWEN_3_5 | {"mtp_num_hidden_layers": 1}, True),
}
# Models for images, which all run, and their decoders' settings besides _TINY. Two large images and some text fit.
VISION_MODELS: dict[str, dict[str, Any]] = {
    "qwen-3-vl-images": _NARROW
    | {
        "head_dim": 32,
        "rope_parameters": _THREE_AXES | {"mrope_section": [6, 5, 5], "mrope_interleaved": True},
        "max_position_embeddings": 512,
    },
    "qwen-2.5-vl-images": _NARROW
    | {"rope_parameters": _THREE_AXES | {"mrope_section": [2, 3, 3]}, "max_position_embeddings": 512},
    "qwen-3.5-images": _QWEN_3_5 | {"max_position_embeddings": 512},
    "qwen-3.5-moe-images": _QWEN_3_5
    | {
        "max_position_embeddings": 512,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "mistral-3-images": _NARROW | {"head_dim": 32, "max_position_embeddings": 512},
    # Convolutions alone before the attention would make all texts with one end alike.
    "lfm2-vl-images": _NARROW
    | {"intermediate_size": 32, "layer_types": ["full_attention", "conv"], "max_position_embeddings": 512},
    "lfm2-audio": _NARROW
    | {"intermediate_size": 32, "layer_types": ["full_attention", "conv"], "max_position_embeddings": 512},
    "gemma-3-images": _NARROW
    | {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 576,
    },
}
# A model for speech; the encoder has 1,500 positions, so a window has its 30 s.
SPEECH_MODELS: dict[str, dict[str, Any]] = {
    "whisper": {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
    },
}
OF_SPEECH = [
    "encoder.onnx",
    "encoder.onnx.data",
    "decoder.onnx",
    "decoder.onnx.data",
    "audio_processor_config.json",
    "genai_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*MODELS, *VISION_MODELS, *SPEECH_MODELS]
    parser.add_argument("--only", action="append", choices=names, help="this model (may be given again)")
    arguments = parser.parse_args()
    ensure_environment()
    from _models.vision_export import export_images

    print("onnxruntime-genai", importlib.metadata.version("onnxruntime-genai"))
    for name in arguments.only or names:
        with tempfile.TemporaryDirectory() as temporary:
            if name in MODELS:
                family, settings, runs = MODELS[name]
                files = [*GRAPH, *(OTHERS if runs else []), *(HEAD if "mtp_num_hidden_layers" in settings else [])]
                build(_sized(family, settings), Path(temporary), OUT / name, files)
            elif name in SPEECH_MODELS:
                built = _build_speech(SPEECH_MODELS[name], Path(temporary) / "built")
                _copy(built, OUT / name, OF_SPEECH)
            else:
                images = VISION_FAMILIES[name]
                images = replace(images, text=_sized(images.text, VISION_MODELS[name]))
                of_medium = OF_SOUNDS if images.kind == "lfm2_audio" else OF_IMAGES
                _copy(export_images(images, Path(temporary), "fp32"), OUT / name, [*GRAPH, *OTHERS, *of_medium])


def build(family: Family, work: Path, out: Path, files: list[str]) -> None:
    """Write the graph and its configuration, and what else the model needs if it is to run."""
    make(family, work / "source")
    export(work / "source", work / "built", precision="fp32", block_size=32, options=family.options)
    _copy(work / "built", out, files)


def _build_speech(settings: dict[str, Any], out: Path) -> Path:
    from _models.random_speech import export_random_speech
    from _models.speech_files import SpeechLayout

    layout = SpeechLayout(["en", "de", "es"], context=128)
    texts = [__doc__ or ""]
    export_random_speech(out, texts, settings, layout, text_tokens=300, precision="fp32", block_size=32)
    return out


def _sized(family: Family, settings: dict[str, Any]) -> Family:
    return replace(family, settings=family.settings | _TINY | settings)


def _copy(built: Path, out: Path, files: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(built / file, out / file)
        print(f"{out.name}/{file}: {(out / file).stat().st_size} bytes")


if __name__ == "__main__":
    main()
