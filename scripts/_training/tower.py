"""A small network that turns a picture into features, and its graph for one picture in Qwen-VL's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from _models.graphs import graph_text, write_graph
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LAYERS = 192, 4, 2
PATCH, TOKEN = 16, 32  # pixels
# Channels and stride of each convolution; together one place for each token.
_CONVOLUTIONS = ((24, 2), (48, 2), (96, 2), (128, 2), (128, 1), (WIDTH, 2))
_WAVES = 4


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
    """Pictures [pictures, 3, height, width] between -1 and 1 to features [pictures, tokens, hidden]: `out(seen())`."""

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
    text = graph_text("tower_start", pixels=3 * 2 * PATCH * PATCH, hidden=tower.out.out_features, patch=PATCH)
    count = len(tower.convolutions) // 3
    for number in range(count):
        convolution, norm = tower.convolutions[3 * number], tower.convolutions[3 * number + 1]
        weights[f"kernel_{number}"], weights[f"bias_{number}"] = _folded(convolution, norm)
        text += graph_text("tower_convolution", this=number, after=number + 1, stride=convolution.stride[0])
    for name, value in tower.named_parameters():
        if not name.startswith("convolutions"):
            array = value.detach().numpy()
            weights[name.replace(".", "_")] = array.T if array.ndim == 2 else array
    head = WIDTH // HEADS
    text += graph_text("tower_places", content=f"active_{count}", width=WIDTH, heads=HEADS, head=head, scale=head**-0.5)
    for number in range(len(tower.blocks)):
        text += graph_text("vision_block", this=number, after=number + 1, w=f"blocks_{number}_")
    write_graph(path, text + graph_text("tower_end", last=len(tower.blocks)), weights, half=True)


def _folded(convolution: nn.Module, norm: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias that have the norm in them."""
    gain = norm.weight / (norm.running_var + norm.eps).sqrt()
    bias = norm.bias + (convolution.bias - norm.running_mean) * gain
    return (convolution.weight * gain[:, None, None, None]).detach().numpy(), bias.detach().numpy()
