"""Vision and embedding graphs of a model for images, in onnxruntime-genai's layout: small, with random weights.

Their texts are in the folder `graphs`, in the syntax of onnx.parser with `$name` where a number or a name is filled in.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

import numpy as np
import onnx

_OPSET = '<ir_version: 10, opset_import: ["" : 21]>'
_FOLDER = Path(__file__).with_name("graphs")
Weights = dict[str, np.ndarray]
# Of LFM2-Audio's encoder.
MELS, FRAMES_PER_TOKEN = 128, 8


def write_embedding(
    path: Path,
    table: np.ndarray,
    image_token: int,
    *,
    features: str = "features",
    name: str = "image_features",
    half: bool = False,
) -> None:
    """The graph that looks up tokens [batch, sequence] in a table [vocabulary, hidden].

    The n-th image token takes the n-th row of the input `name` [features, hidden]; there may be none of both.
    `features` names other axes before the last one.
    """
    hidden = table.shape[1]
    none = np.zeros((1, hidden), np.float32)
    text = graph_text("embedding", hidden=hidden, image_token=image_token, features=features)
    text = text.replace("image_features", name)
    write_graph(path, text, {"table": table, "no_feature": none}, half=half)


def write_qwen_vision(path: Path, hidden: int, patch: int, loudness: float) -> None:
    """The graph for one image of Qwen-VL: a feature depends on its pixels, its place and a little on all others."""
    rng = np.random.default_rng(7)
    pixels = 3 * 2 * patch * patch
    weights = _patch_weights(rng, pixels, hidden, loudness) | {"from_token": _random(rng, 4 * hidden, hidden)}
    write_graph(path, graph_text("qwen_vision", pixels=pixels, hidden=hidden, token=4 * hidden), weights)


def write_lfm2_vision(path: Path, hidden: int, patch: int, loudness: float) -> None:
    """The graph for images of LFM2-VL; what features depend on is as with Qwen-VL."""
    rng = np.random.default_rng(7)
    pixels = 3 * patch * patch
    weights = _patch_weights(rng, pixels, hidden, loudness)
    # What tells the four patches of a token apart, whose sum it is.
    weights |= {"corner_gains": _random(rng, 4, hidden), "from_token": _random(rng, hidden, hidden)}
    write_graph(path, graph_text("patches_vision", pixels=pixels, hidden=hidden), weights)


def _patch_weights(rng: np.random.Generator, pixels: int, hidden: int, loudness: float) -> Weights:
    mixed, waves = 8, 4
    frequencies = np.zeros((2, 2 * waves), np.float32)
    frequencies[0, :waves] = frequencies[1, waves:] = np.pi / 2 ** np.arange(1, waves + 1)
    return {
        "frequencies": frequencies,
        "from_waves": _random(rng, 4 * waves, hidden),
        "from_pixels": _random(rng, pixels, mixed),
        "from_mixed": _random(rng, mixed, hidden),
        "loudness": np.array(loudness, np.float32),
    }


def write_lfm2_speech(path: Path, hidden: int, loudness: float) -> None:
    """The graph for one sound of LFM2-Audio: a feature depends on its frames, and a little on all others."""
    rng = np.random.default_rng(7)
    mels = _random(rng, MELS * FRAMES_PER_TOKEN, hidden).T.reshape(hidden, MELS, FRAMES_PER_TOKEN)
    sizes = {"mels": MELS, "stride": FRAMES_PER_TOKEN, "padding": FRAMES_PER_TOKEN - 1}
    weights = {"from_mels": mels, "loudness": np.array(loudness, np.float32)}
    write_graph(path, graph_text("speech", hidden=hidden, **sizes), weights)


def write_pixtral_vision(path: Path, hidden: int, patch: int, loudness: float) -> None:
    """The graph for one image [1, 3, height, width] of Mistral 3; what features depend on is as with Qwen-VL."""
    text = graph_text("whole_image_vision", images=1, tokens="tokens", shape=-1, hidden=hidden, patch=patch)
    write_graph(path, text, _whole_image_weights(hidden, patch, loudness))


def write_gemma_vision(path: Path, hidden: int, patch: int, loudness: float) -> None:
    """The graph for images [images, 3, 32 * patch, 32 * patch] of Gemma 3, each of which becomes 256 features."""
    text = graph_text(
        "whole_image_vision", images="images", tokens="images, 256", shape="-1, 256", hidden=hidden, patch=patch
    )
    write_graph(path, text, _whole_image_weights(hidden, patch, loudness))


def _whole_image_weights(hidden: int, patch: int, loudness: float) -> Weights:
    rng = np.random.default_rng(7)
    mixed = 8
    return {
        "from_pixels": _random(rng, 3 * patch * patch, mixed).T.reshape(mixed, 3, patch, patch),
        "row_speed": rng.uniform(0.2, 1, (1, mixed, 1, 1)).astype(np.float32),
        "column_speed": rng.uniform(0.2, 1, (1, mixed, 1, 1)).astype(np.float32),
        "from_patches": _random(rng, 4 * mixed, hidden).T.reshape(hidden, mixed, 2, 2),
        "loudness": np.array(loudness, np.float32),
    }


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
