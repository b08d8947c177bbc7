"""Vision and embedding graphs of a model for images, in onnxruntime-genai's layout: small, with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

_OPSET = '<ir_version: 10, opset_import: ["" : 21]>'
Weights = dict[str, np.ndarray]

_EMBEDDING = """
embedding (int64[batch, sequence] input_ids, float[{features}, {hidden}] image_features)
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
    by_row = Constant <value_ints = [-1, {hidden}]> ()
    given = Reshape (image_features, by_row)
    rows = Concat <axis = 0> (no_feature, given)
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
vision (float[patches, {pixels}] pixel_values, int64[1, 3] image_grid_thw)
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


# Whole images, whose patches become places of channels; two by two of them are a token.
_WHOLE_IMAGE_VISION = """
vision (float[{images}, 3, height, width] pixel_values) => (float[{tokens}, {hidden}] image_features)
{{
    mixed = Conv <strides = [{patch}, {patch}]> (pixel_values, from_pixels)
    shape = Shape (mixed)
    ones = ConstantOfShape <value = float[1] {{1}}> (shape)
    down = Constant <value_int = 2> ()
    across = Constant <value_int = 3> ()
    row = CumSum (ones, down)
    column = CumSum (ones, across)
    row_angle = Mul (row, row_speed)
    column_angle = Mul (column, column_speed)
    angle = Add (row_angle, column_angle)
    position = Sin (angle)
    placed = Add (mixed, position)
    bent = Tanh (placed)
    both = Constant <value_ints = [2, 3]> ()
    whole = ReduceMean <keepdims = 1> (bent, both)
    informed = Add (bent, whole)
    projected = Conv <strides = [2, 2]> (informed, from_patches)
    features = Tanh (projected)
    by_place = Transpose <perm = [0, 2, 3, 1]> (features)
    by_token = Constant <value_ints = [{shape}, {hidden}]> ()
    tokens = Reshape (by_place, by_token)
    image_features = Mul (tokens, loudness)
}}
"""


# Images of several sizes at once, padded with patches that the mask leaves out; patches come row by row.
_PATCHES_VISION = """
vision (
    float[images, patches, {pixels}] pixel_values,
    int64[images, patches] image_attention_mask,
    int64[images, 2] image_sizes
) => (float[tokens, {hidden}] image_features)
{{
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    two = Constant <value_int = 2> ()
    four = Constant <value_int = 4> ()
    last = Constant <value_ints = [-1]> ()
    start = Constant <value_ints = [0]> ()
    columns_at = Constant <value_ints = [1]> ()
    size = Shape <start = 1, end = 2> (pixel_values)
    patches = Squeeze (size, start)
    patch = Range (zero, patches, one)
    columns = Gather <axis = 1> (image_sizes, columns_at)
    row = Div (patch, columns)
    column = Mod (patch, columns)
    token_row = Div (row, two)
    token_column = Div (column, two)
    token_columns = Div (columns, two)
    before = Mul (token_row, token_columns)
    in_image = Add (before, token_column)
    area = ReduceProd <keepdims = 1> (image_sizes, columns_at)
    counts = Div (area, four)
    offsets = CumSum <exclusive = 1> (counts, zero)
    token = Add (in_image, offsets)
    total_count = ReduceSum <keepdims = 0> (counts)
    lower = Mod (row, two)
    right = Mod (column, two)
    lower_two = Mul (lower, two)
    corner = Add (lower_two, right)
    gains = Gather (corner_gains, corner)
    rows = Unsqueeze (row, last)
    across = Unsqueeze (column, last)
    places = Concat <axis = 2> (rows, across)
    place = Cast <to = 1> (places)
    angles = MatMul (place, frequencies)
    sines = Sin (angles)
    cosines = Cos (angles)
    waves = Concat <axis = 2> (sines, cosines)
    position = MatMul (waves, from_waves)
    mixed = MatMul (pixel_values, from_pixels)
    bent = Tanh (mixed)
    content = MatMul (bent, from_mixed)
    placed = Add (content, position)
    hidden = Tanh (placed)
    mask_1 = Unsqueeze (image_attention_mask, last)
    mask = Cast <to = 1> (mask_1)
    seen = Mul (hidden, mask)
    sum = ReduceSum <keepdims = 1> (seen, columns_at)
    count = ReduceSum <keepdims = 1> (mask, columns_at)
    whole = Div (sum, count)
    informed = Add (hidden, whole)
    cornered = Mul (informed, gains)
    projected = MatMul (cornered, from_token)
    valid = NonZero (image_attention_mask)
    by_image = Transpose <perm = [1, 0]> (valid)
    parts = GatherND (projected, by_image)
    targets = GatherND (token, by_image)
    target = Unsqueeze (targets, last)
    total = Reshape (total_count, last)
    width = Constant <value_ints = [{hidden}]> ()
    shape = Concat <axis = 0> (total, width)
    none = ConstantOfShape <value = float[1] {{0}}> (shape)
    merged = ScatterND <reduction = "add"> (none, target, parts)
    features = Tanh (merged)
    image_features = Mul (features, loudness)
}}
"""


_SPEECH = """
speech (float[clips, frames, {mels}] audio_embeds, int64[clips] audio_lengths)
    => (float[clips, tokens, {hidden}] audio_features)
{{
    by_mel = Transpose <perm = [0, 2, 1]> (audio_embeds)
    mixed = Conv <strides = [{stride}], pads = [0, {padding}]> (by_mel, from_mels)
    bent = Tanh (mixed)
    last = Constant <value_ints = [2]> ()
    whole = ReduceMean <keepdims = 1> (bent, last)
    informed = Add (bent, whole)
    by_token = Transpose <perm = [0, 2, 1]> (informed)
    features = Tanh (by_token)
    audio_features = Mul (features, loudness)
}}
"""
# A block of a vision transformer; `{w}` begins the names of its weights.
BLOCK = """
    normed_{this} = LayerNormalization (x_{this}, {w}before_attention_weight, {w}before_attention_bias)
    qkv_product_{this} = MatMul (normed_{this}, {w}qkv_weight)
    qkv_{this} = Add (qkv_product_{this}, {w}qkv_bias)
    parts_{this} = Reshape (qkv_{this}, parts_shape)
    query_{this} = Gather <axis = 1> (parts_{this}, zero)
    key_{this} = Gather <axis = 1> (parts_{this}, one)
    value_{this} = Gather <axis = 1> (parts_{this}, two)
    queries_{this} = Transpose <perm = [1, 0, 2]> (query_{this})
    keys_{this} = Transpose <perm = [1, 2, 0]> (key_{this})
    values_{this} = Transpose <perm = [1, 0, 2]> (value_{this})
    products_{this} = MatMul (queries_{this}, keys_{this})
    scaled_{this} = Mul (products_{this}, scale)
    shares_{this} = Softmax (scaled_{this})
    mixed_{this} = MatMul (shares_{this}, values_{this})
    by_token_{this} = Transpose <perm = [1, 0, 2]> (mixed_{this})
    found_{this} = Reshape (by_token_{this}, row_shape)
    attended_product_{this} = MatMul (found_{this}, {w}attended_weight)
    attended_{this} = Add (attended_product_{this}, {w}attended_bias)
    between_{this} = Add (x_{this}, attended_{this})
    normed_again_{this} = LayerNormalization (between_{this}, {w}before_mlp_weight, {w}before_mlp_bias)
    up_product_{this} = MatMul (normed_again_{this}, {w}up_weight)
    up_{this} = Add (up_product_{this}, {w}up_bias)
    bent_{this} = Gelu (up_{this})
    down_product_{this} = MatMul (bent_{this}, {w}down_weight)
    down_{this} = Add (down_product_{this}, {w}down_bias)
    x_{after} = Add (between_{this}, down_{this})
"""
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
    text = _EMBEDDING.format(hidden=hidden, image_token=image_token, features=features)
    text = text.replace("image_features", name)
    write_graph(path, text, {"table": table, "no_feature": none}, half=half)


def write_qwen_vision(path: Path, hidden: int, patch: int, loudness: float) -> None:
    """The graph for one image of Qwen-VL: a feature depends on its pixels, its place and a little on all others."""
    rng = np.random.default_rng(7)
    pixels = 3 * 2 * patch * patch
    weights = _patch_weights(rng, pixels, hidden, loudness) | {"from_token": _random(rng, 4 * hidden, hidden)}
    write_graph(path, _QWEN_VISION.format(pixels=pixels, hidden=hidden, token=4 * hidden), weights)


def write_lfm2_vision(path: Path, hidden: int, patch: int, loudness: float) -> None:
    """The graph for images of LFM2-VL; what features depend on is as with Qwen-VL."""
    rng = np.random.default_rng(7)
    pixels = 3 * patch * patch
    weights = _patch_weights(rng, pixels, hidden, loudness)
    # What tells the four patches of a token apart, whose sum it is.
    weights |= {"corner_gains": _random(rng, 4, hidden), "from_token": _random(rng, hidden, hidden)}
    write_graph(path, _PATCHES_VISION.format(pixels=pixels, hidden=hidden), weights)


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
    write_graph(path, _SPEECH.format(hidden=hidden, **sizes), weights)


def write_pixtral_vision(path: Path, hidden: int, patch: int, loudness: float) -> None:
    """The graph for one image [1, 3, height, width] of Mistral 3; what features depend on is as with Qwen-VL."""
    text = _WHOLE_IMAGE_VISION.format(images=1, tokens="tokens", shape=-1, hidden=hidden, patch=patch)
    write_graph(path, text, _whole_image_weights(hidden, patch, loudness))


def write_gemma_vision(path: Path, hidden: int, patch: int, loudness: float) -> None:
    """The graph for images [images, 3, 32 * patch, 32 * patch] of Gemma 3, each of which becomes 256 features."""
    text = _WHOLE_IMAGE_VISION.format(
        images="images", tokens="images, 256", shape="-1, 256", hidden=hidden, patch=patch
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
