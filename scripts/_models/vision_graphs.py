"""Vision and embedding graphs of a model for images, in onnxruntime-genai's layout: small, with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

_OPSET = '<ir_version: 10, opset_import: ["" : 21]>'
Weights = dict[str, np.ndarray]

_EMBEDDING = """
embedding (int64[batch, sequence] input_ids, float[features, {hidden}] image_features)
    => (float[batch, sequence, {hidden}] inputs_embeds)
{{
    words = Gather (table, input_ids)
    image_token = Constant <value_int = {image_token}> ()
    is_image = Equal (input_ids, image_token)
    last = Constant <value_ints = [-1]> ()
    first = Constant <value_int = 0> ()
    ones = Cast <to = 7> (is_image)
    flat = Reshape (ones, last)
    counted = CumSum (flat, first)
    numbered = Mul (counted, flat)
    shape = Shape (input_ids)
    number = Reshape (numbered, shape)
    rows = Concat <axis = 0> (no_feature, image_features)
    features = Gather (rows, number)
    chosen = Unsqueeze (is_image, last)
    inputs_embeds = Where (chosen, features, words)
}}
"""

# The processor writes the four patches of a token one after the other, and the tokens by rows.
_QWEN_PLACES = """
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    two = Constant <value_int = 2> ()
    four = Constant <value_int = 4> ()
    grid = Constant <value_ints = [0, 2]> ()
    columns = GatherND (image_grid_thw, grid)
    in_two_rows = Mul (columns, two)
    start = Constant <value_ints = [0]> ()
    size = Shape <start = 0, end = 1> (pixel_values)
    patches = Squeeze (size, start)
    patch = Range (zero, patches, one)
    token_row = Div (patch, in_two_rows)
    in_rows = Mod (patch, in_two_rows)
    token_column = Div (in_rows, four)
    in_token = Mod (patch, four)
    lower = Div (in_token, two)
    right = Mod (patch, two)
    upper_row = Mul (token_row, two)
    row = Add (upper_row, lower)
    left_column = Mul (token_column, two)
    column = Add (left_column, right)
"""

_QWEN_VISION = (
    """
vision (float[patches, {pixels}] pixel_values, int64[images, 3] image_grid_thw)
    => (float[tokens, {hidden}] image_features)
{{
"""
    + _QWEN_PLACES
    + """
    last = Constant <value_ints = [-1]> ()
    rows = Unsqueeze (row, last)
    across = Unsqueeze (column, last)
    places = Concat <axis = 1> (rows, across)
    place = Cast <to = 1> (places)
    angles = MatMul (place, frequencies)
    sines = Sin (angles)
    cosines = Cos (angles)
    waves = Concat <axis = 1> (sines, cosines)
    position = MatMul (waves, from_waves)
    mixed = MatMul (pixel_values, from_pixels)
    bent = Tanh (mixed)
    content = MatMul (bent, from_mixed)
    placed = Add (content, position)
    hidden = Tanh (placed)
    whole = ReduceMean <keepdims = 1> (hidden, start)
    informed = Add (hidden, whole)
    token = Constant <value_ints = [-1, {token}]> ()
    merged = Reshape (informed, token)
    projected = MatMul (merged, from_token)
    features = Tanh (projected)
    image_features = Mul (features, loudness)
}}
"""
)


def write_embedding(path: Path, table: np.ndarray, image_token: int) -> None:
    """The graph that looks up tokens [batch, sequence] in a table [vocabulary, hidden].

    The n-th image token takes the n-th row of `image_features` [features, hidden]; there may be none of both.
    """
    hidden = table.shape[1]
    none = np.zeros((1, hidden), np.float32)
    _write(path, _EMBEDDING.format(hidden=hidden, image_token=image_token), {"table": table, "no_feature": none})


def write_qwen_vision(path: Path, *, hidden: int, patch: int, loudness: float) -> None:
    """The graph for one image of Qwen-VL: a feature depends on its pixels, its place and a little on all others."""
    rng = np.random.default_rng(7)
    pixels, mixed, waves = 3 * 2 * patch * patch, 8, 4
    frequencies = np.zeros((2, 2 * waves), np.float32)
    frequencies[0, :waves] = frequencies[1, waves:] = np.pi / 2 ** np.arange(1, waves + 1)
    weights = {
        "frequencies": frequencies,
        "from_waves": _random(rng, 4 * waves, hidden),
        "from_pixels": _random(rng, pixels, mixed),
        "from_mixed": _random(rng, mixed, hidden),
        "from_token": _random(rng, 4 * hidden, hidden),
        "loudness": np.array(loudness, np.float32),
    }
    _write(path, _QWEN_VISION.format(pixels=pixels, hidden=hidden, token=4 * hidden), weights)


def _random(rng: np.random.Generator, inputs: int, outputs: int) -> np.ndarray:
    return rng.normal(0, 2 / inputs**0.5, (inputs, outputs)).astype(np.float32)


def _write(path: Path, text: str, weights: Weights) -> None:
    """Save a graph from its text and the weights that the text names."""
    model = onnx.parser.parse_model(_OPSET + text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
