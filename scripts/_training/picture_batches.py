"""Conversations about drawings as padded batches."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from _models.media import QWEN
from PIL import Image

from . import batches
from .conversations import Conversation
from .drawings import COLORS, DIGITS, SHAPES, Scene, draw, random_scene
from .picture_questions import questions, small_talk, varied, without_picture
from .tower import TOKEN

MARK, PAD = "<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"
MIN_PIXELS, MAX_PIXELS = 128 * 128, 192 * 192
# Rows and columns in tokens, and how often; what large pictures of usual shapes become, and small ones.
GRIDS = {(6, 6): 4, (5, 6): 4, (6, 5): 2, (5, 5): 2, (4, 4): 2, (4, 5): 1, (5, 4): 1, (4, 6): 2, (6, 4): 1}
GRIDS |= {(4, 7): 2, (7, 4): 1, (4, 8): 2, (8, 4): 1, (3, 6): 1, (6, 3): 1, (3, 8): 1}
KINDS, TINTS = (*SHAPES, *DIGITS), tuple(COLORS)
_SYSTEM = ("You are a helpful assistant.", "You are a helpful vision model.", "Answer briefly.", "Be concise.")
_LENGTH_MULTIPLE = 16
Picture = tuple[Scene, np.ndarray]


@dataclass
class Batch:
    """Text with positions [3, rows, length]; pictures [pictures, 3, height, width], first row's first.

    `kinds` and `tints` [pictures, places] name what has its center at a place, 0 for nothing.
    """

    text: batches.Batch
    positions: torch.Tensor
    pictures: torch.Tensor
    kinds: torch.Tensor
    tints: torch.Tensor


def resized(width: int, height: int) -> tuple[int, int]:
    """The size that the processor scales a picture to."""
    wide, high = (max(1, round(side / TOKEN)) * TOKEN for side in (width, height))
    if wide * high > MAX_PIXELS:
        shrink = math.sqrt(width * height / MAX_PIXELS)
        wide, high = (max(1, math.floor(side / shrink / TOKEN)) * TOKEN for side in (width, height))
    elif wide * high < MIN_PIXELS:
        grow = math.sqrt(MIN_PIXELS / (width * height))
        wide, high = (math.ceil(side * grow / TOKEN) * TOKEN for side in (width, height))
    return wide, high


def random_size(grid: tuple[int, int], rng: random.Random) -> tuple[int, int]:
    """Width and height of a picture that is scaled to a grid of tokens."""
    wanted = (grid[1] * TOKEN, grid[0] * TOKEN)
    while True:
        scale = math.exp(rng.uniform(-0.4, 0.8))
        size = (round(wanted[0] * scale * rng.uniform(0.85, 1.2)), round(wanted[1] * scale * rng.uniform(0.85, 1.2)))
        if resized(*size) == wanted:
            return size


def pixels(picture: Image.Image) -> np.ndarray:
    """[3, height, width] between -1 and 1, as the processor scales them."""
    small = picture.resize(resized(*picture.size), Image.Resampling.BICUBIC)
    return (np.asarray(small, np.float32) / 127.5 - 1).transpose(2, 0, 1)


def make_batch(encoder: batches.Encoder, chats: list[Chat], grid: tuple[int, int]) -> Batch:
    """A batch of conversations with pictures of one size."""
    rows = encoder.rows([batches.render(chat).replace(PAD, PAD * (grid[0] * grid[1])) for chat in chats])
    length = max(len(ids) for ids, _ in rows)
    length += -(length - 1) % _LENGTH_MULTIPLE
    text = batches.padded(rows, len(rows), length - 1)
    positions = torch.from_numpy(np.stack([places(ids, grid) for ids in text.tokens.tolist()], 1))
    shown = [picture for chat in chats for picture in chat.pictures]
    labels = zip(*(_labels(scene, grid) for scene, _ in shown), strict=True)
    stacked = (torch.from_numpy(np.stack(each)) for each in ([image for _, image in shown], *labels))
    return Batch(text, positions, *stacked)


def places(ids: list[int], grid: tuple[int, int]) -> np.ndarray:
    """Qwen-VL's three positions [3, tokens]: a picture's tokens share one time and have their row and column."""
    parts, at, index = [], 0, 0
    while index < len(ids):
        if ids[index] == QWEN.token:
            block = np.stack(np.meshgrid([0], np.arange(grid[0]), np.arange(grid[1]), indexing="ij")).reshape(3, -1)
            parts.append(block + at)
            at += max(grid)
            index += grid[0] * grid[1]
        else:
            parts.append(np.full((3, 1), at))
            at += 1
            index += 1
    return np.concatenate(parts, 1)


def _labels(scene: Scene, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    kinds, tints = np.zeros(grid, np.int64), np.zeros(grid, np.int64)
    for item in scene.items:
        place = (int(item.y * grid[0]), int(item.x * grid[1]))
        kinds[place], tints[place] = 1 + KINDS.index(item.kind), 1 + TINTS.index(item.color)
    return kinds.reshape(-1), tints.reshape(-1)


@dataclass
class Chat(Conversation):
    """A conversation about pictures, in the order in which it shows them."""

    pictures: list[Picture] = field(default_factory=list)


def picture_of(grid: tuple[int, int], rng: random.Random) -> Picture:
    width, height = random_size(grid, rng)
    scene = random_scene(rng, width / height)
    return scene, pixels(draw(scene, width, height, rng))


def training_chat(look: Callable[[], Picture], rng: random.Random, pictures: int) -> Chat:
    """Four questions about one picture, or two each about two; sometimes small talk in between."""
    chat = Chat()
    if rng.random() < 0.15:
        chat.messages.append({"role": "system", "content": rng.choice(_SYSTEM)})
    if rng.random() < 0.12:
        chat.say(*small_talk(rng))
    if rng.random() < 0.06:
        chat.say(*without_picture(rng))
    for _ in range(pictures):
        chat.pictures.append(look())
        mark = MARK
        for question, answer in questions(chat.pictures[-1][0], rng, 4 // pictures):
            asked = varied(question, rng)
            chat.say(mark + asked if rng.random() < 0.75 else asked + mark, answer)
            mark = ""
            if rng.random() < 0.02:
                chat.say(*small_talk(rng))
    return chat


def training_batches(encoder: batches.Encoder, rng: random.Random, rows: int) -> Iterator[Batch]:
    """Conversations with pictures of one size, and as many in each."""
    while True:
        (grid,) = rng.choices(list(GRIDS), list(GRIDS.values()))
        pictures = 1 if rng.random() < 0.85 else 2
        look = partial(picture_of, grid, rng)
        yield make_batch(encoder, [training_chat(look, rng, pictures) for _ in range(rows)], grid)
