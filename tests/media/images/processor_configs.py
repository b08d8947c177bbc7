"""Configurations of image processors, as published models have them, and the inputs of the models' vision graphs."""

from typing import Any

_DECODE = {"operation": {"name": "decode_image", "type": "DecodeImage", "attrs": {"color_space": "RGB"}}}
_RGB = {"operation": {"name": "convert_to_rgb", "type": "ConvertRGB"}}
_RESCALE = {"operation": {"name": "rescale", "type": "Rescale", "attrs": {"rescale_factor": 0.00392156862745098}}}
_HALF = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
_CHANNELS_FIRST = {"operation": {"name": "to_channel_first", "type": "Permute3D", "attrs": {"dims": [2, 0, 1]}}}
_SIZES = {"operation": {"name": "image_sizes", "type": "PixtralImageSizes"}}


def _normalize(**more: Any) -> dict[str, Any]:
    return {"operation": {"name": "normalize", "type": "Normalize", "attrs": {**_HALF, **more}}}


def _resize(**attrs: Any) -> dict[str, Any]:
    return {"operation": {"name": "resize", "type": "Resize", "attrs": {"width": 540, "height": 360, **attrs}}}


def _patches(patch: int) -> dict[str, Any]:
    attrs = {"patch_size": patch, "temporal_patch_size": 2, "merge_size": 2}
    return {"operation": {"name": "patch_image", "type": "PatchImage", "attrs": attrs}}


def _smart(patch: int, max_pixels: int) -> dict[str, Any]:
    return _resize(smart_resize=1, min_pixels=3136, max_pixels=max_pixels, patch_size=patch, merge_size=2)


# By model.type: the steps of the processor, and inputs of the vision graph besides pixel_values.
PROCESSORS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        "inputs": {"image_grid_thw": "image_grid_thw"},
        "transforms": [_DECODE, _RGB, _smart(16, 12_845_056), _RESCALE, _normalize(qwen3_vl=1), _patches(16)],
    },
    "gemma3": {
        "inputs": {},
        "transforms": [
            _DECODE,
            _RGB,
            _resize(width=896, height=896, keep_aspect_ratio=0),
            _RESCALE,
            _normalize(),
            _CHANNELS_FIRST,
        ],
    },
    "gemma4": {
        "inputs": {"pixel_position_ids": "pixel_position_ids"},
        "transforms": [
            _DECODE,
            {
                "operation": {
                    "name": "gemma4_image_transform",
                    "type": "Gemma4ImageTransform",
                    "attrs": {"patch_size": 16, "max_soft_tokens": 280, "pooling_kernel_size": 3},
                }
            },
        ],
    },
    "mistral3": {
        "inputs": {},
        "transforms": [_DECODE, _RGB, _smart(16, 2_371_600), _RESCALE, _normalize(), _CHANNELS_FIRST, _SIZES],
    },
    "lfm2_vl": {
        "inputs": {"attention_mask": "image_attention_mask", "image_sizes": "image_sizes"},
        "transforms": [_DECODE, _RGB, _smart(16, 262_144), _RESCALE, _normalize(), _CHANNELS_FIRST, _SIZES],
    },
}
