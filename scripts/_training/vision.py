"""Makes the demo model for images: it answers questions about simple drawings."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from _models.export import export, set_greedy
from _models.media import QWEN, complete, template
from _models.tokenizer import save_tokenizer, train_tokenizer
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from .batches import Encoder
from .drawings import random_scene
from .picture_batches import (
    GRIDS,
    KINDS,
    MAX_PIXELS,
    MIN_PIXELS,
    TINTS,
    Batch,
    Chat,
    PictureEncoder,
    picture_of,
    training_batches,
    training_chat,
)
from .picture_questions import ABILITIES, HELD_OUT, question
from .shared import SEED, THREADS, Budget, Course, descend, optimizers_of
from .tables import table
from .template import render
from .tower import WIDTH, Tower, write_tower

CONTEXT, VOCABULARY, HIDDEN = 1024, 640, 192
ROWS = 12  # conversations in a step
_NOTHING = 0.15  # how much a place without anything counts
RATE = 1e-3
TOWER_ALONE = 0.3  # the share of the time in which only the vision part learns, from labels of what is where


def make(budget: Budget, work: Path, fresh: Path) -> None:
    """Tokenizer, model, training, export."""
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    save_tokenizer(tokenizer, work, template("qwen"), CONTEXT)
    model = Seer(tokenizer.get_vocab_size())
    parts = [p for name, p in model.named_parameters() if "visual" not in name]
    print(f"{sum(p.numel() for p in parts):,} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)
    train(model, tokenizer, budget)
    model.train(False)
    model.whole.save_pretrained(work)
    export(work, fresh, precision="int8", block_size=32, options=["exclude_embeds=true"])
    medium = QWEN.with_pixels(MIN_PIXELS, MAX_PIXELS)
    complete(medium, "qwen3_vl", work, fresh, lambda path, _: write_tower(path, model.tower), half=True)
    set_greedy(fresh)


def make_tokenizer() -> Tokenizer:
    """A tokenizer for the language of the training text."""
    rng, unseen = random.Random(SEED), np.zeros(0, np.float32)
    chats = [training_chat(lambda: (random_scene(rng, 1.0), unseen), rng, 1) for _ in range(3000)]
    return train_tokenizer([render(chat.messages) for chat in chats], VOCABULARY, QWEN.marks)


class Seer(nn.Module):  # type: ignore[misc]
    """The decoder, the tower, and heads that name what is at each place, which only training has."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        shape = table("models")["vision"]
        shape["text_config"]["vocab_size"] = vocabulary
        self.whole = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**shape, **QWEN.ids))
        self.decoder = self.whole.model.language_model
        self.head = self.whole.lm_head
        self.tower = Tower(HIDDEN)
        self.kinds, self.tints = nn.Linear(WIDTH, 1 + len(KINDS)), nn.Linear(WIDTH, 1 + len(TINTS))

    def naming_loss(self, seen: torch.Tensor, batch: Batch) -> torch.Tensor:
        """How badly the tower names what it sees [pictures, tokens, WIDTH]."""
        loss = seen.new_zeros(())
        for head, wanted in ((self.kinds, batch.kinds), (self.tints, batch.tints)):
            losses = functional.cross_entropy(head(seen).flatten(0, 1), wanted.flatten(), reduction="none")
            weights = torch.where(wanted.flatten() == 0, _NOTHING, 1.0)
            loss = loss + (losses * weights).sum() / weights.sum()
        return loss

    def logits(self, seen: torch.Tensor, batch: Batch, pad: int) -> torch.Tensor:
        """Scores where the assistant speaks."""
        embeds = self.decoder.embed_tokens(batch.tokens)
        features = self.tower.out(seen).flatten(0, 1)
        embeds = embeds.masked_scatter((batch.tokens == pad)[..., None], features)
        hidden = self.decoder(inputs_embeds=embeds, position_ids=batch.positions, use_cache=False).last_hidden_state
        result: torch.Tensor = self.head(hidden.flatten(0, 1).index_select(0, batch.said))
        return result


def train(model: Seer, tokenizer: Tokenizer, budget: Budget) -> None:
    """Train until the budget is used; the learning rate falls to zero at its end."""
    torch.set_num_threads(THREADS)
    encoder = PictureEncoder(tokenizer, Encoder(tokenizer, CONTEXT))
    batches = training_batches(encoder, random.Random(SEED), ROWS)
    validation = validation_batches(encoder, random.Random(SEED + 1), 2)
    optimizers = optimizers_of(model, [model.decoder.layers, model.tower.blocks], RATE, decay=0.01, threads=1)
    course = Course(budget, optimizers, RATE, "pictures", evaluate=lambda: report(model, validation, encoder.pad))
    for done in course.steps():
        batch = next(batches)
        losses = _step(model, batch, encoder.pad, optimizers, speaks=done > TOWER_ALONE)
        course.note(len(batch.pictures), **losses)


def _step(
    model: Seer, batch: Batch, pad: int, optimizers: Sequence[torch.optim.Optimizer], *, speaks: bool
) -> dict[str, float]:
    seen = model.tower.seen(batch.pictures)
    naming = model.naming_loss(seen, batch)
    losses, loss = {"naming": naming.item()}, naming
    if speaks:
        spoken = functional.cross_entropy(model.logits(seen, batch, pad), batch.targets, reduction="none")
        speaking = (spoken * batch.weights).sum() / batch.weights.sum()
        losses["speaking"] = speaking.item()
        loss = 0.3 * naming + speaking
    descend(model, loss, optimizers)
    return losses


def validation_batches(encoder: PictureEncoder, rng: random.Random, count: int) -> list[Batch]:
    """Other pictures and phrasings: a question each."""
    made = []
    for grid in list(GRIDS)[: 3 * count]:
        chats: list[Chat] = []
        for ability in ABILITIES:
            while sum(chat.ability == ability for chat in chats) < 4:
                scene, image = picture_of(grid, rng)
                if asked := question(ability, scene, HELD_OUT, rng):
                    chats.append(Chat([], [(scene, image)], ability))
                    chats[-1].say(asked, picture=True)
        made.append(encoder.batch(chats, grid))
    return made


@torch.no_grad()  # type: ignore[untyped-decorator]
def report(model: Seer, batches: Iterable[Batch], pad: int) -> None:
    """Print for each ability the share of questions in which greedy choice would say every word of the answer."""
    model.train(False)
    asked, wrong = Counter[str](), Counter[str]()
    for batch in batches:
        chosen = model.logits(model.tower.seen(batch.pictures), batch, pad).argmax(-1)
        missed = (chosen != batch.targets) & (batch.weights > 0)
        rows = set((batch.said[missed] // batch.tokens.shape[1]).tolist())
        asked.update(batch.abilities)
        wrong.update(batch.abilities[row] for row in rows)
    print("  exact: " + ", ".join(f"{name} {100 * (1 - wrong[name] / asked[name]):.0f}" for name in asked), flush=True)
    model.train()
