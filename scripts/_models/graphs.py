"""Graphs of a model for images or sounds, in onnxruntime-genai's layout, with random weights.

Their texts are in the folder `graph_texts`, in the syntax of onnx.parser with `$name` where a number or a name is
filled in.
"""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import onnx

_OPSET = '<ir_version: 10, opset_import: ["" : 21]>'
_FOLDER = Path(__file__).with_name("graph_texts")
Weights = dict[str, np.ndarray]
# Of SigLIP base, 86 million parameters.
LAYERS, WIDTH, HEADS, MLP = 12, 768, 12, 3072


def write_embedding(path: Path, table: np.ndarray, token: int, *, features: str, name: str, half: bool = False) -> None:
    """The graph that looks up tokens [batch, sequence] in a table [vocabulary, hidden].

    The n-th `token` takes the n-th row of the input `name` [features, hidden]; there may be none of both. `features`
    names the axes before the last one. With `half` the table is kept in 16 bits.
    """
    hidden = table.shape[1]
    none = np.zeros((1, hidden), np.float32)
    text = graph_text("embedding", hidden=hidden, image_token=token, features=features)
    write_graph(path, text.replace("image_features", name), {"table": table, "no_feature": none}, half=half)


def write_medium(path: Path, graph: str, values: dict[str, Any], hidden: int, patch: int, loudness: float) -> None:
    """A small graph for images or sounds, whose features are `hidden` wide and of this scale.

    A feature depends on its pixels or frames, for images on its place, and a little on all others. `patch` is the side
    of a patch in pixels.
    """
    rng, loud = np.random.default_rng(7), {"loudness": np.array(loudness, np.float32)}
    mixed, pixels, waves = 8, 3 * patch * patch, 4
    if graph == "speech":
        mels, stride = values["mels"], values["stride"]
        weights = {"from_mels": _random(rng, mels * stride, hidden).T.reshape(hidden, mels, stride)} | loud
    elif graph == "whole_image_vision":
        weights = {
            "from_pixels": _random(rng, pixels, mixed).T.reshape(mixed, 3, patch, patch),
            "row_speed": rng.uniform(0.2, 1, (1, mixed, 1, 1)).astype(np.float32),
            "column_speed": rng.uniform(0.2, 1, (1, mixed, 1, 1)).astype(np.float32),
            "from_patches": _random(rng, 4 * mixed, hidden).T.reshape(hidden, mixed, 2, 2),
        } | loud
    else:
        has_time = graph == "qwen_vision"  # a patch is of two images of a video, or of one twice
        pixels *= 2 if has_time else 1
        values = values | {"pixels": pixels} | ({"token": 4 * hidden} if has_time else {})
        frequencies = np.zeros((2, 2 * waves), np.float32)
        frequencies[0, :waves] = frequencies[1, waves:] = np.pi / 2 ** np.arange(1, waves + 1)
        weights = {
            "frequencies": frequencies,
            "from_waves": _random(rng, 4 * waves, hidden),
            "from_pixels": _random(rng, pixels, mixed),
            "from_mixed": _random(rng, mixed, hidden),
        } | loud
        if not has_time:  # what tells the four patches of a token apart, whose sum it is
            weights["corner_gains"] = _random(rng, 4, hidden)
        weights["from_token"] = _random(rng, 4 * hidden if has_time else hidden, hidden)
    write_graph(path, graph_text(graph, hidden=hidden, **values), weights)


def write_bench_vision(path: Path, table: np.ndarray, patch: int) -> None:
    """A vision graph of real size, SigLIP base, in Qwen-VL's layout.

    Its features are as wide as the embeddings in `table` [vocabulary, hidden].
    """
    rng, hidden, head, pixels = np.random.default_rng(0), table.shape[1], WIDTH // HEADS, 3 * 2 * patch * patch
    sizes = {"pixels": pixels, "hidden": hidden, "heads": HEADS, "head": head, "width": WIDTH, "token": 4 * WIDTH}
    text = graph_text("bench_start", **sizes, scale=head**-0.5)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32)

    weights = {"from_pixels": matrix(pixels, WIDTH), "from_token": matrix(4 * WIDTH, hidden)}
    ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    weights |= {"norm_weight": ones, "norm_bias": zeros}
    for layer in range(LAYERS):
        w = f"block_{layer}_"
        text += graph_text("vision_block", this=layer, after=layer + 1, w=w)
        for part in ("before_attention", "before_mlp"):
            weights |= {f"{w}{part}_weight": ones, f"{w}{part}_bias": zeros}
        matrices = {"qkv": (WIDTH, 3 * WIDTH), "attended": (WIDTH, WIDTH), "up": (WIDTH, MLP), "down": (MLP, WIDTH)}
        for part, (rows, columns) in matrices.items():
            weights |= {f"{w}{part}_weight": matrix(rows, columns), f"{w}{part}_bias": np.zeros(columns, np.float32)}
    write_graph(path, text + graph_text("bench_end", last=LAYERS), weights)


def _random(rng: np.random.Generator, inputs: int, outputs: int) -> np.ndarray:
    return rng.normal(0, 2 / inputs**0.5, (inputs, outputs)).astype(np.float32)


def graph_text(name: str, **values: object) -> str:
    """The text of this name, whole or a part of a graph, with these values."""
    return Template((_FOLDER / f"{name}.onnxtxt").read_text(encoding="utf-8")).substitute(values)


def write_graph(path: Path, text: str, weights: Weights, *, half: bool = False) -> None:
    """Save a graph from its text and the weights that the text names, in 16 bits if `half`."""
    model = onnx.parser.parse_model(_OPSET + text)
    casts = []
    for name, array in weights.items():
        if half:
            casts.append(onnx.helper.make_node("Cast", [f"{name}_16"], [name], to=onnx.TensorProto.FLOAT))
            model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float16), f"{name}_16"))
        else:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
