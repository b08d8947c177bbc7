"""A small network that turns a picture into features, and its graph for one picture in Qwen-VL's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from _models.vision_graphs import BLOCK, write_graph
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LAYERS = 192, 4, 2
PATCH, TOKEN = 16, 32  # pixels
# Channels and stride of each convolution; together one place for each token.
_CONVOLUTIONS = ((24, 2), (48, 2), (96, 2), (128, 2), (128, 1), (WIDTH, 2))
_WAVES = 4
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

_END = """
    seen = LayerNormalization (x_{last}, norm_weight, norm_bias)
    out_product = MatMul (seen, out_weight)
    image_features = Add (out_product, out_bias)
}}
"""


class Block(nn.Module):  # type: ignore[misc]
    """Attention among all places of a picture, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pictures, places, _ = x.shape
        parts = self.qkv(self.before_attention(x)).view(pictures, places, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
        x = x + self.attended(found)
        result: torch.Tensor = x + self.down(functional.gelu(self.up(self.before_mlp(x))))
        return result


class Tower(nn.Module):  # type: ignore[misc]
    """Pictures [pictures, 3, height, width] between -1 and 1 to features [pictures, tokens, hidden]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        channels = 3
        layers: list[nn.Module] = []
        for wanted, stride in _CONVOLUTIONS:
            layers += [nn.Conv2d(channels, wanted, 3, stride, 1), nn.BatchNorm2d(wanted), nn.ReLU()]
            channels = wanted
        self.convolutions = nn.Sequential(*layers)
        self.place = nn.Linear(4 * _WAVES * 2, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, hidden)

    def seen(self, pictures: torch.Tensor) -> torch.Tensor:
        """[pictures, tokens, WIDTH], row by row."""
        content = self.convolutions(pictures.contiguous(memory_format=torch.channels_last))
        rows, columns = content.shape[-2:]
        x = content.flatten(2).transpose(1, 2) + self.place(_waves(rows, columns))
        for block in self.blocks:
            x = block(x)
        seen: torch.Tensor = self.norm(x)
        return seen

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.out(self.seen(pictures))
        return features


def frequencies() -> torch.Tensor:
    """For row, column, and both as shares of the picture [4, 4 * _WAVES]."""
    absolute = torch.pi / 2 ** torch.arange(1, _WAVES + 1)
    relative = torch.pi * 2 ** torch.arange(_WAVES) / 2
    return torch.block_diag(absolute, absolute, relative, relative)


def _waves(rows: int, columns: int) -> torch.Tensor:
    row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    places = torch.stack([row, column, (row + 0.5) / rows, (column + 0.5) / columns], 1)
    angles = places @ frequencies()
    return torch.cat([angles.sin(), angles.cos()], 1)


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
