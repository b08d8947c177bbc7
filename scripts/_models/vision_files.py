"""The parts of a model directory for images next to its decoder: vision, embedding, processor, configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .vision_graphs import write_embedding

PROCESSOR, VISION, EMBEDDING = "processor_config.json", "vision.onnx", "embedding.onnx"
SPEECH = "speech.onnx"
PATCH = 16
QWEN_2_5_PATCH = 14
GEMMA_PATCH = 4
# Mean and deviation of the colors, as CLIP has them.
_CLIP = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
Json = dict[str, Any]
_HALF: Json = {"mean": [0.5] * 3, "std": [0.5] * 3}
# Steps of the processor with their settings, in order.
Steps = dict[str, Json]
_BY_CHANNEL: Steps = {"Permute3D": {"dims": [2, 0, 1]}}


@dataclass(frozen=True)
class Layout:
    """How onnxruntime-genai treats images: `settings` of its configuration's model, steps of the processor."""

    kind: str
    image_token: int
    settings: Json
    processor: Json
    # Axes of the features before the last one, and what embeddings of tokens are multiplied by.
    features: str = "features"
    scale: float = 1.0
    # The graph next to the decoder and the embeddings, and what the embeddings take of it.
    graph: str = VISION
    output: str = "image_features"


def complete(
    layout: Layout, source: Path, built: Path, write_vision: Callable[[Path, np.ndarray], None], *, half: bool = False
) -> None:
    """Add to the builder's directory what images need; `source` is the Hugging Face directory it was built from.

    `write_vision` gets the path of the graph and the embeddings of tokens [vocabulary, hidden]. With `half` these
    embeddings are kept in 16 bits.
    """
    table = _embeddings(source) * np.float32(layout.scale)
    name = layout.output
    write_embedding(built / EMBEDDING, table, layout.image_token, features=layout.features, name=name, half=half)
    write_vision(built / layout.graph, table)
    if layout.processor:
        _write_json(built / PROCESSOR, layout.processor)
    # The builder's may name a tokenizer class that onnxruntime-genai does not know.
    shutil.copy(source / "tokenizer_config.json", built)
    path = built / "genai_config.json"
    config = json.loads(path.read_text())
    tokens = {} if layout.graph == SPEECH else {"image_token_id": layout.image_token}
    config["model"] |= {"type": layout.kind, **tokens, **layout.settings}
    _write_json(path, config)


def _embeddings(source: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    weights = load_file(source / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("embed_tokens.weight"))
    table: np.ndarray = weights[name]
    return table


def _write_json(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, indent=4) + "\n")


def qwen_patch(kind: str) -> int:
    """The side of a patch in pixels; two by two patches are one token."""
    return QWEN_2_5_PATCH if kind == "qwen2_5_vl" else PATCH


def qwen_layout(kind: str, tokens: Json, min_pixels: int, max_pixels: int) -> Layout:
    """Qwen-VL's; `tokens` has the ids of its special tokens."""
    patch = qwen_patch(kind)
    normalize = _HALF | {"qwen3_vl": 1}
    if kind == "qwen2_5_vl":
        normalize = _CLIP | {"qwen2_5_vl": 1}
    settings = {name: tokens[name] for name in ("video_token_id", "vision_start_token_id")}
    settings |= _sections(
        {"spatial_merge_size": 2, "tokens_per_second": 2.0, "patch_size": patch},
        {"pixel_values": "pixel_values", "image_grid_thw": "image_grid_thw"},
    )
    patches = {"PatchImage": {"patch_size": patch, "temporal_patch_size": 2, "merge_size": 2}}
    steps = _scaled(_smart_resize(min_pixels, max_pixels, patch), normalize) | patches
    name = "qwen2_5_vl_image_processor" if kind == "qwen2_5_vl" else "qwen3_vl_image_processor"
    return Layout(kind, tokens["image_token_id"], settings, _processor(name, steps))


def pixtral_layout(kind: str, image_token: int, min_pixels: int, max_pixels: int) -> Layout:
    """Mistral 3's: a row of tokens ends with [IMG_BREAK], the last one with [IMG_END]."""
    settings = _sections({"spatial_merge_size": 2, "patch_size": PATCH}, {"pixel_values": "pixel_values"})
    steps = _scaled(_smart_resize(min_pixels, max_pixels), _CLIP) | _BY_CHANNEL | {"PixtralImageSizes": {}}
    return Layout(kind, image_token, settings, _processor("pixtral_image_processor", steps))


def lfm2_layout(kind: str, image_token: int, min_pixels: int, max_pixels: int) -> Layout:
    """LFM2-VL's: patches of several images, padded to the same number, with a mask and their rows and columns."""
    settings = _sections(
        {"spatial_merge_size": 2, "patch_size": PATCH},
        {"pixel_values": "pixel_values", "attention_mask": "image_attention_mask", "image_sizes": "image_sizes"},
    )
    steps = _scaled(_smart_resize(min_pixels, max_pixels), _HALF) | _BY_CHANNEL | {"PixtralImageSizes": {}}
    return Layout(kind, image_token, settings, _processor("lfm2_vl_image_processor", steps))


def lfm2_audio_layout(kind: str, audio_token: int) -> Layout:
    """LFM2-Audio's: onnxruntime-genai makes the spectrogram itself, without a configuration."""
    output = "audio_features"
    settings = {
        "audio_token_id": audio_token,
        "embedding": {
            "filename": EMBEDDING,
            "inputs": {"input_ids": "input_ids", output: output},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        },
        "speech": {
            "filename": SPEECH,
            "inputs": {"audio_embeds": "audio_embeds", "audio_lengths": "audio_lengths"},
            "outputs": {output: output},
        },
    }
    return Layout(kind, audio_token, settings, {}, graph=SPEECH, output=output)


def gemma_layout(kind: str, image_token: int, hidden: int) -> Layout:
    """Gemma 3's: every image is scaled to one size and becomes 256 tokens."""
    settings = _sections({}, {"pixel_values": "pixel_values"})
    side = 32 * GEMMA_PATCH
    steps = _scaled({"interpolation": "CUBIC", "width": side, "height": side, "keep_aspect_ratio": 0}, _HALF)
    del steps["ConvertRGB"]
    processor = _processor("image_processing", steps | _BY_CHANNEL)
    return Layout(kind, image_token, settings, processor, features="images, features", scale=hidden**0.5)


def _scaled(resize: Json, normalize: Json) -> Steps:
    """The steps from an encoded image to one of another size, whose colors are around 0."""
    return {
        "DecodeImage": {"color_space": "RGB"},
        "ConvertRGB": {},
        "Resize": resize,
        "Rescale": {"rescale_factor": 1 / 255},
        "Normalize": normalize,
    }


def _smart_resize(min_pixels: int, max_pixels: int, patch: int = PATCH) -> Json:
    limits = {"min_pixels": min_pixels, "max_pixels": max_pixels}
    return {"width": 256, "height": 256, "smart_resize": 1, "patch_size": patch, "merge_size": 2} | limits


def _sections(vision: Json, inputs: Json) -> Json:
    return {
        "embedding": {
            "filename": EMBEDDING,
            "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        },
        "vision": {
            "filename": VISION,
            "config_filename": PROCESSOR,
            **vision,
            "inputs": inputs,
            "outputs": {"image_features": "image_features"},
        },
    }


def _processor(name: str, steps: Steps) -> Json:
    """Steps of onnxruntime-extensions from an encoded image to what the vision graph takes."""
    transforms = [
        {"operation": {"name": kind, "type": kind} | ({"attrs": settings} if settings else {})}
        for kind, settings in steps.items()
    ]
    return {"processor": {"name": name, "transforms": transforms}}
