"""Makes the demo model: 4.5 million parameters, on text of small tables and templates."""

from __future__ import annotations

import functools
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import torch
from _models.export import export, set_greedy
from _models.tokenizer import save_tokenizer, train_copying_tokenizer
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from .batches import TEMPLATE, Batch, Encoder, render, training_batches
from .conversations import conversation
from .shared import SEED, THREADS, Budget, Course, optimizers_of, report, small_llama, update

CONTEXT = 2048
VOCABULARY, SPACED_WORDS = 1920, 420
LONGEST = 1280  # the longest conversation to learn from, in tokens
BATCH_TOKENS, BATCHES_PER_STEP = 2048, 2
RATE = 3e-3


def make(budget: Budget, work: Path, fresh: Path) -> None:
    """Tokenizer, model, training, export."""
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    save_tokenizer(tokenizer, work, TEMPLATE, CONTEXT)
    model = small_llama("text", vocab_size=tokenizer.get_vocab_size())
    train(model, tokenizer, budget)
    model.save_pretrained(work)
    export(work, fresh, precision="int8", block_size=32)
    set_greedy(fresh)


def make_tokenizer() -> Tokenizer:
    """A tokenizer for the language of the training text."""
    rng = random.Random(SEED)
    chats = [conversation(rng) for _ in range(20_000)]
    return train_copying_tokenizer([render(chat) for chat in chats], VOCABULARY, SPACED_WORDS)


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, budget: Budget) -> None:
    """Train until the budget is used; the learning rate falls to zero at its end."""
    encoder = Encoder(tokenizer, LONGEST)
    batches = training_batches(encoder, random.Random(SEED), BATCH_TOKENS)
    optimizers = optimizers_of(model, [model.model.layers], RATE, decay=0.0)
    parameters, pool = list(model.parameters()), ThreadPoolExecutor(THREADS)
    torch.set_num_threads(1)
    course = Course(budget, optimizers, RATE)
    for _ in course.steps():
        learned = [next(batches) for _ in range(BATCHES_PER_STEP)]
        total = sum(float(batch.weights.sum()) for batch in learned)
        (loss,) = update(parameters, learned, functools.partial(_loss, model, total=total), optimizers, pool)
        course.note(loss=loss)
    others = islice(training_batches(encoder, random.Random(SEED + 1), BATCH_TOKENS), 6)
    report(model, others, functools.partial(_scores, model))


def _loss(model: LlamaForCausalLM, batch: Batch, total: float) -> tuple[torch.Tensor, list[float]]:
    logits, targets, weights = _scores(model, batch)
    losses = functional.cross_entropy(logits.float(), targets, reduction="none")
    loss = (losses * weights).sum() / total
    return loss, [loss.item()]


def _scores(model: LlamaForCausalLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits at the positions where the assistant speaks, what follows there, and how much it counts."""
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # the cache is shared by all threads
        hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden.flatten(0, 1).index_select(0, batch.said))
    return logits, batch.targets, batch.weights
