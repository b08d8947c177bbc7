"""A vision graph of real size with random weights: SigLIP base, 86 million parameters, in Qwen-VL's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .vision_files import PATCH
from .vision_graphs import BLOCK, write_graph

LAYERS, WIDTH, HEADS, MLP = 12, 768, 12, 3072
_START = """
vision (float[patches, {pixels}] pixel_values, int64[1, 3] image_grid_thw)
    => (float[tokens, {hidden}] image_features)
{{
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    two = Constant <value_int = 2> ()
    parts_shape = Constant <value_ints = [-1, 3, {heads}, {head}]> ()
    row_shape = Constant <value_ints = [-1, {width}]> ()
    token_shape = Constant <value_ints = [-1, {token}]> ()
    scale = Constant <value_float = {scale}> ()
    x_0 = MatMul (pixel_values, from_pixels)
"""
_END = """
    normed = LayerNormalization (x_{last}, norm_weight, norm_bias)
    merged = Reshape (normed, token_shape)
    image_features = MatMul (merged, from_token)
}}
"""


def write_bench_vision(path: Path, table: np.ndarray) -> None:
    """Features as wide as the embeddings in `table` [vocabulary, hidden]."""
    rng, hidden, pixels = np.random.default_rng(0), table.shape[1], 3 * 2 * PATCH * PATCH
    shapes = {
        "from_pixels": (pixels, WIDTH),
        "from_token": (4 * WIDTH, hidden),
        "norm_weight": (WIDTH,),
        "norm_bias": (WIDTH,),
    }
    head = WIDTH // HEADS
    text = _START.format(
        pixels=pixels, hidden=hidden, heads=HEADS, head=head, width=WIDTH, token=4 * WIDTH, scale=head**-0.5
    )
    for layer in range(LAYERS):
        w = f"block_{layer}_"
        text += BLOCK.format(this=layer, after=layer + 1, w=w)
        for part in ("before_attention", "before_mlp"):
            shapes |= {f"{w}{part}_weight": (WIDTH,), f"{w}{part}_bias": (WIDTH,)}
        sizes = {"qkv": (WIDTH, 3 * WIDTH), "attended": (WIDTH, WIDTH), "up": (WIDTH, MLP), "down": (MLP, WIDTH)}
        for part, shape in sizes.items():
            shapes |= {f"{w}{part}_weight": shape, f"{w}{part}_bias": shape[1:]}
    weights = {name: _random(rng, name, shape) for name, shape in shapes.items()}
    write_graph(path, text + _END.format(last=LAYERS), weights)


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return np.full(shape, float("norm" in name or "before" in name) * name.endswith("weight"), np.float32)
    return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
