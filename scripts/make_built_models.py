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
from _models.family import FAMILIES, Family, make, read_families

OUT = REPOSITORY / "tests" / "built_models"
GRAPH, OTHERS = ["model.onnx", "genai_config.json"], ["model.onnx.data", "tokenizer.json", "tokenizer_config.json"]
HEAD = ["mtp.onnx", "mtp.onnx.data"]
OF_SOUNDS = ["speech.onnx", "embedding.onnx", "chat_template.jinja"]
OF_IMAGES = ["vision.onnx", "embedding.onnx", "processor_config.json", "chat_template.jinja"]
# Small enough for a repository with their weights, in most cases with a `hidden_size` of 32 besides.
_TINY: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}
MODELS = read_families(
    "built_models", {name: replace(family, settings=family.settings | _TINY) for name, family in FAMILIES.items()}
)
# Models for text whose files are complete, because they are to run.
RUNNING = ("phi-3-128k", "phi-4-mini", "lfm2", "qwen-3.5")
# Models for images and sounds, which all run: their medium (vision_families.py), and the type that onnxruntime-genai
# knows each by.
MEDIA = {
    "qwen-3-vl-images": ("qwen", "qwen3_vl"),
    "qwen-2.5-vl-images": ("qwen", "qwen2_5_vl"),
    "qwen-3.5-images": ("qwen", "qwen3_5"),
    "qwen-3.5-moe-images": ("qwen", "qwen3_5_moe"),
    "mistral-3-images": ("mistral", "mistral3"),
    "lfm2-vl-images": ("lfm2", "lfm2_vl"),
    "lfm2-audio": ("lfm2_audio", "lfm2_audio"),
    "gemma-3-images": ("gemma", "gemma3"),
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
    names = [*MODELS, *SPEECH_MODELS]
    parser.add_argument("--only", action="append", choices=names, help="this model (may be given again)")
    arguments = parser.parse_args()
    ensure_environment()
    print("onnxruntime-genai", importlib.metadata.version("onnxruntime-genai"))
    for name in arguments.only or names:
        with tempfile.TemporaryDirectory() as temporary:
            if name in SPEECH_MODELS:
                build_speech(SPEECH_MODELS[name], Path(temporary) / "built", OUT / name)
            elif name in MEDIA:
                build_medium(MODELS[name], *MEDIA[name], Path(temporary), OUT / name)
            else:
                build(MODELS[name], Path(temporary), OUT / name, runs=name in RUNNING)


def build(family: Family, work: Path, out: Path, *, runs: bool) -> None:
    """Write the graph and its configuration, and what else the model needs if it is to run."""
    make(family, work / "source")
    export(work / "source", work / "built", precision="fp32", block_size=32, options=family.options)
    head = HEAD if "mtp_num_hidden_layers" in family.settings else []
    _copy(work / "built", out, [*GRAPH, *(OTHERS if runs else []), *head])


def build_medium(text: Family, medium: str, kind: str, work: Path, out: Path) -> None:
    """Write a model for images or sounds."""
    from _models import vision_families

    built = vision_families.export_medium(text, kind, vision_families.MEDIA[medium], work)
    _copy(built, out, [*GRAPH, *OTHERS, *(OF_SOUNDS if medium == "lfm2_audio" else OF_IMAGES)])


def build_speech(settings: dict[str, Any], built: Path, out: Path) -> None:
    """Write a model for speech."""
    from _models.random_speech import export_random_speech
    from _models.speech_files import SpeechLayout

    layout = SpeechLayout(["en", "de", "es"], context=128)
    texts = [__doc__ or ""]
    export_random_speech(built, texts, settings, layout, text_tokens=300, precision="fp32", block_size=32)
    _copy(built, out, OF_SPEECH)


def _copy(built: Path, out: Path, files: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(built / file, out / file)
        print(f"{out.name}/{file}: {(out / file).stat().st_size} bytes")


if __name__ == "__main__":
    main()
