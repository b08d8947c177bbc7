"""Makes a draft model for the demo model that drafts in parallel, as PARD does: 0.2 million parameters.

After the tokens of a text, the model reads mask tokens: the one after n of them predicts the token n places later. In
training, masks follow some of the tokens that the assistant says, which are chosen at random. All masks of a text are
read in one pass: each sees the text up to its chosen token, and the masks between.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import torch
from _models.environment import REPOSITORY
from _models.tokenizer import save_tokenizer
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from .batches import TEMPLATE, Batch, Encoder, training_batches
from .conversations import plain_chat
from .shared import SEED, THREADS, Budget, Course, descend, optimizers_of, small_llama
from .text import CONTEXT

MODEL = REPOSITORY / "models" / "demo"
# Tokens that a pass predicts, and tokens with masks behind them in each row of a batch, for each 32 tokens of its
# length.
DEPTH, CHOSEN = 8, 2
# Embeddings behind those of the tokenizer's tokens, the first of which is that of the mask token.
SPARE = 32
LONGEST = 224
BATCH_TOKENS = 512
RATE = 6e-3


def make(budget: Budget, work: Path, fresh: Path) -> None:
    """Model, training, and export as of a published checkpoint."""
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    # The mask token is behind the tokens of the demo model's tokenizer.
    model = small_llama("draft", vocab_size=vocabulary + SPARE, pard_token=vocabulary)
    save_tokenizer(tokenizer, work, TEMPLATE, CONTEXT)
    train(model, tokenizer, budget)
    model.save_pretrained(work)
    program = REPOSITORY / ".venv" / "bin" / "genai-server"
    options = ["--python", sys.executable, "--precision", "int8"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    subprocess.run([program, "export", work, "--to", fresh, *options], check=True, env=environment)
    for name in (".genai-server.json", "export.log", "quality.json"):  # the export's own notes
        (fresh / name).unlink(missing_ok=True)


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, budget: Budget) -> None:
    """Train until the budget is used; the learning rate falls to zero at its end."""
    encoder = Encoder(tokenizer, LONGEST)
    batches = training_batches(encoder, random.Random(SEED), BATCH_TOKENS, plain_chat)
    torch.set_num_threads(THREADS)
    optimizers = optimizers_of(model, [model.model.layers], RATE, decay=0.0)
    course = Course(budget, optimizers, RATE)
    for _ in course.steps():
        batch = next(batches)
        logits, masked, targets, weights = predict(model, batch)
        # Of all tokens that are said, and of those after masks.
        first = functional.cross_entropy(logits, batch.targets, reduction="none")
        first = (first * batch.weights).sum() / batch.weights.sum()
        later = functional.cross_entropy(masked, targets, reduction="none")
        later = (later * weights).sum() / weights.sum().clamp(min=1.0)
        descend(model, first + later, optimizers)
        course.note(first=first.item(), later=later.item())
    report(model, islice(training_batches(encoder, random.Random(SEED + 1), BATCH_TOKENS, plain_chat), 8))


def predict(model: LlamaForCausalLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits `[said tokens, vocabulary]` of the tokens that are said, then those after masks, with targets and weights.

    Masks follow tokens that are chosen at random. Those after masks have the shape
    `[rows * chosen tokens * (DEPTH - 1), vocabulary]`.
    """
    rows, length = batch.tokens.shape
    num_chosen = max(1, CHOSEN * length // 32)
    targets, weights = torch.zeros(rows * length, dtype=torch.long), torch.zeros(rows * length)
    targets[batch.said], weights[batch.said] = batch.targets, batch.weights
    targets, weights = targets.view(rows, length), weights.view(rows, length)
    likely = (weights > 0).float() + 1e-9  # rows that only pad a batch have no token that is said
    chosen = torch.multinomial(likely, num_chosen, replacement=True)
    offsets = torch.arange(1, DEPTH)
    positions = (chosen[:, :, None] + offsets).flatten(1)  # of the masks [rows, masks]
    inside = positions.clamp(max=length - 1)
    mask_targets = targets.gather(1, inside)
    mask_weights = weights.gather(1, inside) * (positions < length)
    tokens = torch.cat([batch.tokens, torch.full_like(positions, model.config.pard_token)], 1)
    all_positions = torch.cat([torch.arange(length).expand(rows, -1), positions], 1)
    hidden = model.model(
        input_ids=tokens, position_ids=all_positions, attention_mask=_attention(chosen, length), use_cache=False
    ).last_hidden_state
    said = hidden[:, :length].flatten(0, 1).index_select(0, batch.said)
    return (
        model.lm_head(said),
        model.lm_head(hidden[:, length:].flatten(0, 1)),
        *map(torch.flatten, (mask_targets, mask_weights)),
    )


def _attention(chosen: torch.Tensor, length: int) -> torch.Tensor:
    """What each token and each mask sees, as numbers to add to scores `[rows, 1, tokens and masks, the same]`."""
    rows, num_chosen = chosen.shape
    num_masks = num_chosen * (DEPTH - 1)
    sees = torch.zeros(rows, length + num_masks, length + num_masks, dtype=torch.bool)
    sees[:, :length, :length] = torch.ones(length, length, dtype=torch.bool).tril()
    last = chosen.repeat_interleave(DEPTH - 1, 1)
    sees[:, length:, :length] = torch.arange(length) <= last[:, :, None]
    group = torch.arange(num_masks) // (DEPTH - 1)
    sees[:, length:, length:] = (group[:, None] == group) & torch.ones(num_masks, num_masks, dtype=torch.bool).tril()
    return torch.where(sees, 0.0, torch.finfo(torch.float32).min)[:, None]


@torch.no_grad()  # type: ignore[untyped-decorator]
def report(model: LlamaForCausalLM, batches: Iterable[Batch]) -> None:
    """Print the share of right tokens, for each place of a draft."""
    right, asked = torch.zeros(DEPTH), torch.zeros(DEPTH)
    for batch in batches:
        logits, masked, targets, weights = predict(model, batch)
        right[0] += ((logits.argmax(-1) == batch.targets) & (batch.weights > 0)).sum()
        asked[0] += (batch.weights > 0).sum()
        counted = (weights > 0).view(-1, DEPTH - 1)
        right[1:] += ((masked.argmax(-1) == targets).view(-1, DEPTH - 1) & counted).sum(0)
        asked[1:] += counted.sum(0)
    print("  right: " + ", ".join(f"{share:.3f}" for share in (right / asked).tolist()), flush=True)
