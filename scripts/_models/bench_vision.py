"""A vision graph of real size with random weights: SigLIP base, 86 million parameters, in Qwen-VL's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .vision_files import PATCH
from .vision_graphs import graph_text, write_graph

LAYERS, WIDTH, HEADS, MLP = 12, 768, 12, 3072


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
    text = graph_text(
        "bench_start",
        pixels=pixels,
        hidden=hidden,
        heads=HEADS,
        head=head,
        width=WIDTH,
        token=4 * WIDTH,
        scale=head**-0.5,
    )
    for layer in range(LAYERS):
        w = f"block_{layer}_"
        text += graph_text("vision_block", this=layer, after=layer + 1, w=w)
        for part in ("before_attention", "before_mlp"):
            shapes |= {f"{w}{part}_weight": (WIDTH,), f"{w}{part}_bias": (WIDTH,)}
        sizes = {"qkv": (WIDTH, 3 * WIDTH), "attended": (WIDTH, WIDTH), "up": (WIDTH, MLP), "down": (MLP, WIDTH)}
        for part, shape in sizes.items():
            shapes |= {f"{w}{part}_weight": shape, f"{w}{part}_bias": shape[1:]}
    weights = {name: _random(rng, name, shape) for name, shape in shapes.items()}
    write_graph(path, text + graph_text("bench_end", last=LAYERS), weights)


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return np.full(shape, float("norm" in name or "before" in name) * name.endswith("weight"), np.float32)
    return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
