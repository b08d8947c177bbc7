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
from _models.family import FAMILIES, make, read_families

OUT = REPOSITORY / "tests" / "built_models"
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
# Models for images and sounds, and the types that onnxruntime-genai knows them by.
MEDIA = {
    "qwen-3-vl-images": "qwen3_vl",
    "qwen-2.5-vl-images": "qwen2_5_vl",
    "qwen-3.5-images": "qwen3_5",
    "qwen-3.5-moe-images": "qwen3_5_moe",
    "mistral-3-images": "mistral3",
    "lfm2-vl-images": "lfm2_vl",
    "lfm2-audio": "lfm2_audio",
    "gemma-3-images": "gemma3",
}
SPEECH = "whisper"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*MODELS, SPEECH]
    parser.add_argument("--only", action="append", choices=names, help="this model (may be given again)")
    arguments = parser.parse_args()
    ensure_environment()
    print("onnxruntime-genai", importlib.metadata.version("onnxruntime-genai"))
    for name in arguments.only or names:
        with tempfile.TemporaryDirectory() as work:
            built = build_speech(Path(work)) if name == SPEECH else build(name, Path(work))
            # Its folder says which files tests need; that of another model is made with empty ones of these names.
            for file in sorted((OUT / name).iterdir()):
                shutil.copyfile(built / file.name, file)
                print(f"{name}/{file.name}: {file.stat().st_size} bytes")


def build(name: str, work: Path) -> Path:
    """Build a model; returns its directory."""
    family, source, built = MODELS[name], work / "source", work / "built"
    if name in MEDIA:
        from _models.media import export_medium

        return export_medium(family, MEDIA[name], work)
    make(family, source)
    export(source, built, precision="fp32", block_size=32, options=family.options)
    return built


def build_speech(work: Path) -> Path:
    """Build a model for speech, as `build` does. Its encoder has 1,500 positions, so a window has its 30 s."""
    from _models.random_speech import export_random_speech
    from _models.speech_files import SpeechLayout, speech_settings

    # With another docstring of this module, the tokenizer would be another one.
    texts, layout = ([__doc__ or ""], 300), SpeechLayout(["en", "de", "es"], context=128)
    settings = speech_settings(32, layers=2, heads=2, inner=48)
    built = work / "built"
    export_random_speech(work / "source", built, texts, settings, layout, precision="fp32", block_size=32)
    return built


if __name__ == "__main__":
    main()
