"""An endless stream of conversations as padded batches of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from _models.environment import REPOSITORY
from _models.tokenizer import TURN_END_ID
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from .conversations import Conversation, conversation

TEMPLATE = (REPOSITORY / "models" / "demo" / "chat_template.jinja").read_text(encoding="utf-8")

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

    def rows(self, texts: list[str]) -> list[Row]:
        """The conversations that are not too long."""
        encoded = (item.ids for item in self.tokenizer.encode_batch_fast(texts))
        return [(ids, self._weights(ids)) for ids in encoded if len(ids) <= self.longest]

    def _weights(self, ids: list[int]) -> list[float]:
        weights = [0.0] * len(ids)
        for start in range(len(self.opening), len(ids)):
            if ids[start - len(self.opening) : start] == self.opening:
                end = ids.index(TURN_END_ID, start)
                weights[start:end] = [min(1.0, (LONG_ANSWER / (end + 1 - start)) ** 0.5)] * (end - start)
                weights[end] = 1.0
        return weights


def render(chat: Conversation) -> str:
    """The text of a conversation in the demo model's chat template, up to the end of its last message."""
    (text,), _ = render_jinja_template([chat.messages], tools=chat.tools, chat_template=TEMPLATE)
    return str(text)


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


def training_batches(
    encoder: Encoder, rng: random.Random, tokens: int, make: Callable[[random.Random], Conversation] = conversation
) -> Iterator[Batch]:
    """Batches of about this number of tokens, of conversations of similar length, each of which `make` makes."""
    shelves: dict[int, list[Row]] = {length: [] for length in LENGTHS}
    while True:
        chats = [make(rng) for _ in range(CHUNK)]
        for row in encoder.rows([render(chat) for chat in chats]):
            length = next(length for length in LENGTHS if len(row[0]) <= length)
            shelves[length].append(row)
            if len(shelves[length]) == tokens // length:
                yield padded(shelves[length], tokens // length, length)
                shelves[length] = []
