"""A small network that turns a picture into features."""

from __future__ import annotations

import torch
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
