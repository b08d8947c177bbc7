"""Makes the demo model for images: it answers questions about simple drawings."""

from __future__ import annotations

import random
from itertools import islice
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

from .batches import Encoder, render
from .drawings import random_scene
from .picture_batches import KINDS, MAX_PIXELS, MIN_PIXELS, TINTS, Batch, training_batches, training_chat
from .shared import SEED, THREADS, Budget, Course, descend, optimizers_of, report
from .tables import table
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
    return train_tokenizer([render(chat) for chat in chats], VOCABULARY, QWEN.marks)


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

    def logits(self, seen: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Scores where the assistant speaks."""
        tokens = batch.text.tokens
        embeds = self.decoder.embed_tokens(tokens)
        features = self.tower.out(seen).flatten(0, 1)
        embeds = embeds.masked_scatter((tokens == QWEN.token)[..., None], features)
        hidden = self.decoder(inputs_embeds=embeds, position_ids=batch.positions, use_cache=False).last_hidden_state
        result: torch.Tensor = self.head(hidden.flatten(0, 1).index_select(0, batch.text.said))
        return result

    def scores(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits where the assistant speaks, what follows there, and how much it counts."""
        return self.logits(self.tower.seen(batch.pictures), batch), batch.text.targets, batch.text.weights


def train(model: Seer, tokenizer: Tokenizer, budget: Budget) -> None:
    """Train until the budget is used; the learning rate falls to zero at its end."""
    torch.set_num_threads(THREADS)
    encoder = Encoder(tokenizer, CONTEXT)
    batches = training_batches(encoder, random.Random(SEED), ROWS)
    optimizers = optimizers_of(model, [model.decoder.layers, model.tower.blocks], RATE, decay=0.01)
    course = Course(budget, optimizers, RATE)
    for done in course.steps():
        batch = next(batches)
        seen = model.tower.seen(batch.pictures)
        naming = loss = model.naming_loss(seen, batch)
        losses = {"naming": naming.item()}
        if done > TOWER_ALONE:
            spoken = functional.cross_entropy(model.logits(seen, batch), batch.text.targets, reduction="none")
            speaking = (spoken * batch.text.weights).sum() / batch.text.weights.sum()
            losses["speaking"] = speaking.item()
            loss = 0.3 * naming + speaking
        descend(model, loss, optimizers)
        course.note(**losses)
    report(model, islice(training_batches(encoder, random.Random(SEED + 1), ROWS), 12), model.scores)
