"""Train the demo model from scratch within a budget of minutes."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from .batches import Batch, Encoder, training_batches, validation_batches
from .conversations import conversation
from .side_by_side import update
from .template import load_template, render
from .tokenizer import END_OF_TEXT_ID, TURN_END_ID, train_copying_tokenizer

CONTEXT = 2048
VOCABULARY, SPACED_WORDS = 1920, 420
LONGEST = 1280  # the longest conversation to learn from, in tokens
BATCH_TOKENS, BATCHES_PER_STEP = 2048, 2
PEAK_RATE, RESUMED_RATE, WARM_UP = 3e-3, 1e-3, 0.03


@dataclass(frozen=True)
class Budget:
    """What training may use; it ends with the steps or the minutes, whichever are over first."""

    steps: int
    minutes: float
    threads: int


def make_tokenizer(seed: int) -> Tokenizer:
    """A tokenizer for the language of the training text."""
    rng, template = random.Random(seed), load_template()
    chats = [conversation(rng) for _ in range(20_000)]
    texts = [render(template, chat.messages, chat.tools, answer_next=False) for chat in chats]
    return train_copying_tokenizer(texts, VOCABULARY, SPACED_WORDS)


def make_model(vocabulary: int) -> LlamaForCausalLM:
    """A small Llama with random weights; every width is a multiple of the quantization block of 32."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=END_OF_TEXT_ID,
            eos_token_id=TURN_END_ID,
            pad_token_id=END_OF_TEXT_ID,
        )
    )
    model.set_attn_implementation("eager")  # on the CPU faster than the fused kernel at these lengths
    return model


def train(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    *,
    seed: int,
    budget: Budget,
    rate: float,
    checkpoint: Callable[[], None],
) -> None:
    """Train until the budget is used; the learning rate falls to zero at its end."""
    encoder = Encoder(tokenizer, LONGEST)
    batches = training_batches(encoder, random.Random(seed), BATCH_TOKENS)
    validation = validation_batches(encoder, random.Random(seed + 1), 40)
    optimizers = _optimizers(model, budget.threads)
    parameters, pool = list(model.parameters()), ThreadPoolExecutor(budget.threads)
    torch.set_num_threads(1)
    start = reported = checked = time.monotonic()
    seen, losses = 0, 0.0
    step = 0
    while (done := max(step / budget.steps, (time.monotonic() - start) / (60 * budget.minutes))) < 1:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, done / WARM_UP, (1 - done) / 0.6)
        group_of_batches = [next(batches) for _ in range(BATCHES_PER_STEP)]
        total = sum(float(batch.weights.sum()) for batch in group_of_batches)
        (loss,) = update(parameters, group_of_batches, functools.partial(_loss, model, total=total), optimizers, pool)
        step += 1
        seen += sum(batch.tokens.numel() for batch in group_of_batches)
        losses = loss if step == 1 else 0.95 * losses + 0.05 * loss
        now = time.monotonic()
        if now - reported > 10:
            left = (now - start) * (1 - done) / max(done, 1e-6)
            speed = seen / (now - start)
            print(
                f"step {step}  {100 * done:3.0f} %  loss {losses:.4f}  {speed:.0f} tokens/s  {left / 60:.1f} min left",
                flush=True,
            )
            reported = now
        if now - checked > max(60.0, 5 * budget.minutes):
            _report(model, validation)
            checkpoint()
            checked = time.monotonic()
    print(f"{step} steps, {seen} tokens in {(time.monotonic() - start) / 60:.1f} minutes, loss {losses:.4f}")
    _report(model, validation)


def _optimizers(model: LlamaForCausalLM, threads: int) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, shared out over the threads; AdamW for everything else."""
    inner = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    shares = [inner[thread::threads] for thread in range(threads)]
    return [
        torch.optim.AdamW(rest, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        *(torch.optim.Muon(s, lr=PEAK_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw") for s in shares),
    ]


def _loss(model: LlamaForCausalLM, batch: Batch, total: float) -> tuple[torch.Tensor, list[float]]:
    losses = functional.cross_entropy(_logits(model, batch).float(), batch.targets, reduction="none")
    loss = (losses * batch.weights).sum() / total
    return loss, [loss.item()]


def _logits(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Scores at the positions where the assistant speaks."""
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # the cache is shared by all threads
        hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        logits: torch.Tensor = model.lm_head(hidden.flatten(0, 1).index_select(0, batch.said))
    return logits


@torch.no_grad()  # type: ignore[untyped-decorator]
def exactness(model: LlamaForCausalLM, batches: list[Batch]) -> float:
    """The share of conversations in which greedy choice would say every word of the assistant."""
    asked = wrong = 0
    for batch in batches:
        missed = (_logits(model, batch).argmax(-1) != batch.targets) & (batch.weights > 0)
        length = batch.tokens.shape[1]
        asked += len(set((batch.said[batch.weights > 0] // length).tolist()))
        wrong += len(set((batch.said[missed] // length).tolist()))
    return 1 - wrong / asked


def _report(model: LlamaForCausalLM, validation: dict[str, list[Batch]]) -> None:
    model.train(False)
    print(
        "  exact: " + ", ".join(f"{name} {100 * exactness(model, b):.0f}" for name, b in validation.items()), flush=True
    )
    model.train()
