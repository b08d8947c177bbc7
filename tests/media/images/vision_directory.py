"""A small model directory with what a processor of images needs: configurations, a tokenizer, inputs of graphs."""

import json
from pathlib import Path
from typing import Any

from onnx import TensorProto

from tests.media.described_graph import write_graph, write_tokenizer
from tests.media.images.processor_configs import PROCESSORS

# The special tokens of all families, and the ids that they get.
SPECIAL = (
    *("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
    *("<|image>", "<|image|>", "<image|>"),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]"),
    *("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
)
FIRST_ID = 2000
IDS = {text: FIRST_ID + number for number, text in enumerate(SPECIAL)}
_FEATURES = {"qwen3_vl": "<|image_pad|>", "gemma3": "<image_soft_token>", "gemma4": "<|image|>", "mistral3": "[IMG]"}
_FEATURES |= {"lfm2_vl": "<image>"}


def make_vision_directory(folder: Path, kind: str = "qwen3_vl", pixels: int = TensorProto.FLOAT) -> Path:
    """Write a directory of a type; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vision_inputs = {"pixel_values": "pixel_values", **PROCESSORS[kind]["inputs"]}
    model: dict[str, Any] = {
        "bos_token_id": 0,
        "context_length": 4096,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "type": kind,
        "vocab_size": FIRST_ID + len(SPECIAL),
        "image_token_id": IDS[_FEATURES[kind]],
        "vision_start_token_id": IDS["<|vision_start|>"],
        "decoder": {
            "filename": "text.onnx",
            "head_size": 8,
            "hidden_size": 8,
            "inputs": {
                "inputs_embeds": "inputs_embeds",
                "attention_mask": "attention_mask",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
            "num_attention_heads": 1,
            "num_hidden_layers": 1,
            "num_key_value_heads": 1,
        },
        "embedding": {
            "filename": "embedding.onnx",
            "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        },
        "vision": {
            "filename": "vision.onnx",
            "config_filename": "processor_config.json",
            "spatial_merge_size": 2,
            "patch_size": 16,
            "inputs": vision_inputs,
            "outputs": {"image_features": "image_features"},
            # Would fail on a machine without such a device, if the processor used it.
            "session_options": {"provider_options": [{"cuda": {}}]},
        },
    }
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": {}}), encoding="utf-8")
    processor = {"processor": {"name": "images", "transforms": PROCESSORS[kind]["transforms"]}}
    (folder / "processor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    write_tokenizer(folder, IDS)
    integers = {name: (TensorProto.INT64, ["n", "m"]) for name in PROCESSORS[kind]["inputs"].values()}
    write_graph(
        folder / "vision.onnx", {"pixel_values": (pixels, None), **integers}, {"image_features": (pixels, ["n", 8])}
    )
    embeds = (TensorProto.FLOAT, ["batch", "n", 8])
    features = (TensorProto.FLOAT, ["n", 8])
    write_graph(
        folder / "embedding.onnx",
        {"input_ids": (TensorProto.INT64, ["batch", "n"]), "image_features": features},
        {"inputs_embeds": embeds},
    )
    cache = (TensorProto.FLOAT, ["batch", 1, "m", 8])
    write_graph(
        folder / "text.onnx",
        {
            "inputs_embeds": embeds,
            "attention_mask": (TensorProto.INT64, ["batch", "m"]),
            "past_key_values.0.key": cache,
            "past_key_values.0.value": cache,
        },
        {
            "logits": (TensorProto.FLOAT, ["batch", "n", FIRST_ID + len(SPECIAL)]),
            "present.0.key": cache,
            "present.0.value": cache,
        },
    )
    return folder
