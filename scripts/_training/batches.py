"""An endless stream of conversations as padded batches of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from _models.tokenizer import TURN_END_ID
from tokenizers import Tokenizer

from .conversations import ABILITIES, Conversation, capital, conversation, tool_chat, tools_unused_chat, upper_case_chat
from .template import render

CHUNK = 256  # conversations that are made at a time
LONG_ANSWER = 24  # tokens from which an answer's tokens weigh less, so that counting does not drown the rest
# Few shapes only, because the matrix kernels are compiled anew for every shape.
LENGTHS = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 1280)
SAID_MULTIPLE = 256
Row = tuple[list[int], list[float]]  # tokens and their weights


@dataclass
class Batch:
    """Tokens `[rows, length]`; the flat positions to predict from, what follows there, and how much it counts."""

    tokens: torch.Tensor
    said: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


class Encoder:
    """Conversations to tokens, with a weight on every token that the assistant says."""

    def __init__(self, tokenizer: Tokenizer, longest: int) -> None:
        self.tokenizer = tokenizer
        self.longest = longest
        self.opening = tokenizer.encode("<|im_start|>assistant\n").ids

    def encode(self, chats: list[Conversation]) -> list[Row]:
        """The conversations that are not too long."""
        texts = [render(chat.messages, chat.tools) for chat in chats]
        encoded = (item.ids for item in self.tokenizer.encode_batch_fast(texts))
        return [(ids, self.weights(ids)) for ids in encoded if len(ids) <= self.longest]

    def weights(self, ids: list[int]) -> list[float]:
        weights = [0.0] * len(ids)
        at = 0
        while (at := _find(ids, self.opening, at)) >= 0:
            at += len(self.opening)
            end = ids.index(TURN_END_ID, at)
            size = end + 1 - at
            weights[at:end] = [min(1.0, (LONG_ANSWER / size) ** 0.5)] * (end - at)
            weights[end] = 1.0
        return weights


def padded(rows: list[Row], size: int, length: int) -> Batch:
    """Rows padded to a fixed shape."""
    tokens, weights = torch.zeros(size, length + 1, dtype=torch.long), torch.zeros(size, length + 1)
    for row, (ids, weight) in enumerate(rows):
        tokens[row, : len(ids)] = torch.tensor(ids)
        weights[row, : len(ids)] = torch.tensor(weight)
    said = weights[:, 1:].flatten().nonzero()[:, 0]
    said = torch.cat([said, said.new_zeros(-len(said) % SAID_MULTIPLE)])
    weights = weights[:, 1:].flatten()[said]
    return Batch(tokens[:, :-1], said, tokens[:, 1:].flatten()[said], weights)


def _find(ids: list[int], part: list[int], start: int) -> int:
    for at in range(start, len(ids) - len(part) + 1):
        if ids[at : at + len(part)] == part:
            return at
    return -1


def _batches(rows: Iterable[Row], tokens: int) -> Iterator[Batch]:
    """Rows of about one length together, as soon as they are many enough."""
    shelves: dict[int, list[Row]] = {length: [] for length in LENGTHS}
    for row in rows:
        length = next(length for length in LENGTHS if len(row[0]) <= length)
        shelves[length].append(row)
        if len(shelves[length]) == tokens // length:
            yield padded(shelves[length], tokens // length, length)
            shelves[length] = []
    for length, rest in shelves.items():
        if rest:
            yield padded(rest, tokens // length, length)


def training_batches(
    encoder: Encoder, rng: random.Random, tokens: int, make: Callable[[random.Random], Conversation] = conversation
) -> Iterator[Batch]:
    """Batches of about this number of tokens, of conversations of similar length, each of which `make` makes."""

    def rows() -> Iterator[Row]:
        while True:
            yield from encoder.encode([make(rng) for _ in range(CHUNK)])

    return _batches(rows(), tokens)


def validation_batches(encoder: Encoder, rng: random.Random, rows: int) -> dict[str, list[Batch]]:
    """For every ability batches of conversations about it alone."""
    chats: dict[str, list[Conversation]] = {name: [_single(name, rng) for _ in range(rows)] for name in ABILITIES}
    makers = {"upper case": upper_case_chat, "tools": tool_chat, "tools unused": tools_unused_chat}
    chats |= {name: [make(rng) for _ in range(rows)] for name, make in makers.items()}
    return {name: list(_batches(encoder.encode(made), 2048)) for name, made in chats.items()}


def _single(ability: str, rng: random.Random) -> Conversation:
    chat = Conversation(ability)
    if ability == "follow-up":
        chat.say(*capital(rng))
    chat.say(*ABILITIES[ability][1](rng))
    return chat
