"""The parts of a model directory for images beside its decoder: vision, embedding, processor, configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from .vision_families import VisionFamily
from .vision_graphs import write_embedding, write_qwen_vision

PROCESSOR, VISION, EMBEDDING = "processor_config.json", "vision.onnx", "embedding.onnx"
_PATCH = 16


def complete(family: VisionFamily, source: Path, built: Path) -> None:
    """Add to the builder's directory what images need; `source` is the Hugging Face directory it was built from."""
    table = _embeddings(source)
    outer = family.text.outer
    assert outer is not None
    write_embedding(built / EMBEDDING, table, outer["image_token_id"])
    write_qwen_vision(built / VISION, hidden=table.shape[1], patch=_PATCH, loudness=2 * float(table.std()))
    write_json(built / PROCESSOR, qwen_processor(_PATCH, family.min_pixels, family.max_pixels))
    # The builder's may name a tokenizer class that onnxruntime-genai does not know.
    shutil.copy(source / "tokenizer_config.json", built)
    path = built / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"] |= {"type": family.kind, **qwen_sections(outer, _PATCH)}
    write_json(path, config)


def _embeddings(source: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    weights = load_file(source / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("embed_tokens.weight"))
    return weights[name]


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=4) + "\n")


def qwen_sections(tokens: dict[str, Any], patch: int) -> dict[str, Any]:
    """What genai_config.json says of vision and embedding; `tokens` has the ids of the special tokens."""
    names = ("image_token_id", "video_token_id", "vision_start_token_id")
    return {name: tokens[name] for name in names} | {
        "embedding": {
            "filename": EMBEDDING,
            "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        },
        "vision": {
            "filename": VISION,
            "config_filename": PROCESSOR,
            "spatial_merge_size": 2,
            "tokens_per_second": 2.0,
            "patch_size": patch,
            "inputs": {"pixel_values": "pixel_values", "image_grid_thw": "image_grid_thw"},
            "outputs": {"image_features": "image_features"},
        },
    }


def qwen_processor(patch: int, min_pixels: int, max_pixels: int) -> dict[str, Any]:
    """Steps of onnxruntime-extensions from an encoded image to patches."""
    resize = {"width": 256, "height": 256, "smart_resize": 1, "min_pixels": min_pixels, "max_pixels": max_pixels}
    steps: list[tuple[str, str, dict[str, Any]]] = [
        ("decode_image", "DecodeImage", {"color_space": "RGB"}),
        ("convert_to_rgb", "ConvertRGB", {}),
        ("resize", "Resize", resize | {"patch_size": patch, "merge_size": 2}),
        ("rescale", "Rescale", {"rescale_factor": 1 / 255}),
        ("normalize", "Normalize", {"mean": [0.5] * 3, "std": [0.5] * 3, "qwen3_vl": 1}),
        ("patch_image", "PatchImage", {"patch_size": patch, "temporal_patch_size": 2, "merge_size": 2}),
    ]
    transforms = [
        {"operation": {"name": name, "type": kind} | ({"attrs": settings} if settings else {})}
        for name, kind, settings in steps
    ]
    return {"processor": {"name": "qwen3_vl_image_processor", "transforms": transforms}}
