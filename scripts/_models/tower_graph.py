"""The graph of a trained tower, for one picture in Qwen-VL's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from .vision_graphs import write_graph
from .vision_tower import HEADS, PATCH, WIDTH, Tower, frequencies

# The picture again, of its patches [token rows, token columns, 2, 2, color, frame, row, column].
_START = """
vision (float[patches, {pixels}] pixel_values, int64[1, 3] image_grid_thw)
    => (float[tokens, {hidden}] image_features)
{{
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    two = Constant <value_int = 2> ()
    start = Constant <value_ints = [0]> ()
    rows_at = Constant <value_ints = [1]> ()
    columns_at = Constant <value_ints = [2]> ()
    grid_line = Gather <axis = 0> (image_grid_thw, zero)
    patch_rows = Gather (grid_line, rows_at)
    patch_columns = Gather (grid_line, columns_at)
    token_rows = Div (patch_rows, two)
    token_columns = Div (patch_columns, two)
    in_token_shape = Constant <value_ints = [2, 2, 3, 2, {patch}, {patch}]> ()
    patches_shape = Concat <axis = 0> (token_rows, token_columns, in_token_shape)
    by_patch = Reshape (pixel_values, patches_shape)
    still = Gather <axis = 5> (by_patch, zero)
    by_row = Transpose <perm = [4, 0, 2, 5, 1, 3, 6]> (still)
    patch_side = Constant <value_int = {patch}> ()
    pixel_rows = Mul (patch_rows, patch_side)
    pixel_columns = Mul (patch_columns, patch_side)
    one_picture = Constant <value_ints = [1, 3]> ()
    picture_shape = Concat <axis = 0> (one_picture, pixel_rows, pixel_columns)
    active_0 = Reshape (by_row, picture_shape)
"""

_CONVOLUTION = """
    convolved_{this} = Conv <pads = [1, 1, 1, 1], strides = [{stride}, {stride}]> (
        active_{this}, kernel_{this}, bias_{this})
    active_{after} = Relu (convolved_{this})
"""

_PLACED = """
    line = Constant <value_ints = [{width}, -1]> ()
    by_channel = Reshape ({content}, line)
    content = Transpose <perm = [1, 0]> (by_channel)
    tokens = Mul (token_rows, token_columns)
    token_count = Squeeze (tokens, start)
    token = Range (zero, token_count, one)
    row = Div (token, token_columns)
    column = Mod (token, token_columns)
    counted_rows = Cast <to = 1> (token_rows)
    counted_columns = Cast <to = 1> (token_columns)
    half = Constant <value_float = 0.5> ()
    row_number = Cast <to = 1> (row)
    column_number = Cast <to = 1> (column)
    row_middle = Add (row_number, half)
    column_middle = Add (column_number, half)
    row_share = Div (row_middle, counted_rows)
    column_share = Div (column_middle, counted_columns)
    last = Constant <value_ints = [-1]> ()
    row_number_1 = Unsqueeze (row_number, last)
    column_number_1 = Unsqueeze (column_number, last)
    row_share_1 = Unsqueeze (row_share, last)
    column_share_1 = Unsqueeze (column_share, last)
    numbers = Concat <axis = 1> (row_number_1, column_number_1, row_share_1, column_share_1)
    angles = MatMul (numbers, frequencies)
    sines = Sin (angles)
    cosines = Cos (angles)
    waves = Concat <axis = 1> (sines, cosines)
    place_product = MatMul (waves, place_weight)
    place = Add (place_product, place_bias)
    x_0 = Add (content, place)
    parts_shape = Constant <value_ints = [-1, 3, {heads}, {head}]> ()
    row_shape = Constant <value_ints = [-1, {width}]> ()
    scale = Constant <value_float = {scale}> ()
"""

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

_END = """
    seen = LayerNormalization (x_{last}, norm_weight, norm_bias)
    out_product = MatMul (seen, out_weight)
    image_features = Add (out_product, out_bias)
}}
"""


def write_tower(path: Path, tower: Tower) -> None:
    """Inputs `pixel_values` [patches, 1536] and `image_grid_thw` [1, 3]; weights of 16 bits, computed with 32."""
    weights = {"frequencies": frequencies().numpy()}
    text = _START.format(pixels=3 * 2 * PATCH * PATCH, hidden=tower.out.out_features, patch=PATCH)
    count = len(tower.convolutions) // 3
    for number in range(count):
        convolution, norm = tower.convolutions[3 * number], tower.convolutions[3 * number + 1]
        weights[f"kernel_{number}"], weights[f"bias_{number}"] = _folded(convolution, norm)
        text += _CONVOLUTION.format(this=number, after=number + 1, stride=convolution.stride[0])
    for name, value in tower.named_parameters():
        if not name.startswith("convolutions"):
            array = value.detach().numpy()
            weights[name.replace(".", "_")] = array.T if array.ndim == 2 else array
    head = WIDTH // HEADS
    text += _PLACED.format(content=f"active_{count}", width=WIDTH, heads=HEADS, head=head, scale=head**-0.5)
    for number in range(len(tower.blocks)):
        text += BLOCK.format(this=number, after=number + 1, w=f"blocks_{number}_")
    write_graph(path, text + _END.format(last=len(tower.blocks)), weights, half=True)


def _folded(convolution: nn.Module, norm: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias that have the norm in them."""
    gain = norm.weight / (norm.running_var + norm.eps).sqrt()
    bias = norm.bias + (convolution.bias - norm.running_mean) * gain
    return (convolution.weight * gain[:, None, None, None]).detach().numpy(), bias.detach().numpy()
