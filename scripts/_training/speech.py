"""Makes the demo model for speech: it knows some 280 English words, which espeak-ng speaks."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random

import torch
from _models import speech_files as whisper
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import WhisperForConditionalGeneration

from .shared import SEED, THREADS, Budget, Course, optimizers_of, report, update
from .speech_batches import IGNORED, LETTERS, Batch, Lesson, make_batches
from .speech_sounds import Recording, make_recordings
from .spoken_text import sentence

LAYOUT = whisper.SpeechLayout(["en"], context=224, may_be_empty=True)
TEXT_TOKENS, WIDTH = 640, 128
RATE = 2e-3
# All widths are multiples of the quantization block of 32; the model builder takes as many layers on either side only.
SHAPE = whisper.speech_settings(WIDTH, layers=4, heads=2, inner=512)
# From a share of the time on.
LESSONS = (
    (0.0, Lesson(1, 3.0, 1500, pauses=0.3, prompts=False)),
    (0.4, Lesson(1, 3.0, 1500, pauses=0.3)),
    (0.75, Lesson(2, 7.0, 2000, pauses=0.6)),
    (0.88, Lesson(4, 14.0, 3000, whole=True)),
    (0.96, Lesson(9, 29.0, 12_000, pauses=0.6, whole=True)),
)


def make(budget: Budget, work: Path, fresh: Path) -> None:
    """Recordings, tokenizer, model, training, export."""
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    whisper.save_speech_tokenizer(tokenizer, work, LAYOUT)
    model = Listener(tokenizer)
    # Speaking 30,000 sentences takes some minutes; a shorter training needs fewer.
    recordings = make_recordings(min(30_000, round(500 * budget.minutes)), Random(SEED), THREADS)
    train(model, tokenizer, recordings, budget)
    model.train(False)
    model.whole.save_pretrained(work)
    whisper.export_speech(work, fresh, LAYOUT, precision="int8", block_size=32, tokenizer=tokenizer)


def make_tokenizer() -> Tokenizer:
    """A tokenizer for the sentences, in which most words are one token."""
    rng = Random(SEED)
    return whisper.make_speech_tokenizer([" " + sentence(rng) for _ in range(20_000)], TEXT_TOKENS, LAYOUT)


class Listener(nn.Module):  # type: ignore[misc]
    """Whisper, and a head that spells what the encoder hears, which only training has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.whole = WhisperForConditionalGeneration(whisper.speech_config(tokenizer, LAYOUT, SHAPE))
        self.whole.set_attn_implementation("eager")  # on the CPU faster than the fused kernel at these lengths
        self.speller = nn.Linear(WIDTH, 1 + len(LETTERS))

    def heard(self, features: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """Positions [rows, frames / 2, WIDTH] of windows from position `offset` on."""
        encoder = self.whole.model.encoder
        with _half():
            x = functional.gelu(encoder.conv2(functional.gelu(encoder.conv1(features)))).transpose(1, 2)
            x = x + encoder.embed_positions.weight[offset : offset + x.shape[1]]
            for layer in encoder.layers:
                x = layer(x, None)
            result: torch.Tensor = encoder.layer_norm(x)
        return result.float()

    def logits(self, heard: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Scores [rows, length, vocabulary] of the tokens that follow `tokens` [rows, length]."""
        with _half():
            hidden = self.whole.model.decoder(input_ids=tokens, encoder_hidden_states=heard, use_cache=False)
            result: torch.Tensor = self.whole.proj_out(hidden.last_hidden_state)
        return result.float()

    def scores(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of the tokens to write, these tokens, and whether they count."""
        logits = self.logits(self.heard(batch.features, batch.offset), batch.tokens)
        return logits.flatten(0, 1), batch.targets.flatten(), batch.targets.flatten() != IGNORED

    def loss(self, batch: Batch, spelling_weight: float, share: float) -> tuple[torch.Tensor, list[float]]:
        """Of spelling (by CTC, for a letter) and of writing (for a token), for a share of a step."""
        heard = self.heard(batch.features, batch.offset)
        scores = self.speller(heard).log_softmax(-1).transpose(0, 1)
        lengths = torch.full((len(batch.features),), heard.shape[1])
        spelling = functional.ctc_loss(
            scores, batch.letters, lengths, batch.letter_counts, reduction="sum", zero_infinity=True
        )
        logits = self.logits(heard, batch.tokens).flatten(0, 1)
        writing = functional.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORED)
        spelling = spelling / batch.letter_counts.sum().clamp(min=1)
        return share * (spelling_weight * spelling + writing), [share * spelling.item(), share * writing.item()]


def _half() -> torch.autocast:
    """Products in 16 bits, which some processors have units for."""
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)  # the cache is shared by all threads


def train(model: Listener, tokenizer: Tokenizer, recordings: Sequence[Recording], budget: Budget) -> None:
    """Train until the budget is used; the learning rate falls to zero at its end."""
    torch.set_num_threads(1)
    parameters = [p for p in model.parameters() if p.requires_grad]  # not so the encoder's positions
    pool = ThreadPoolExecutor(THREADS)
    lesson, rng = LESSONS[0][1], Random(SEED)

    def endless() -> Iterator[Batch]:
        while True:
            yield from make_batches(recordings, tokenizer, lesson, rng)

    batches = endless()
    layers = (model.whole.model.encoder.layers, model.whole.model.decoder.layers)
    optimizers = optimizers_of(model, layers, RATE, decay=0.01)
    course = Course(budget, optimizers, RATE, 0.5)
    maker = ThreadPoolExecutor(1)  # of the next batches while the model learns
    coming = maker.submit(lambda: list(islice(batches, THREADS)))
    for done in course.steps():
        lesson = next(lesson for since, lesson in reversed(LESSONS) if done >= since)
        learned, coming = coming.result(), maker.submit(lambda: list(islice(batches, THREADS)))
        loss = functools.partial(model.loss, spelling_weight=1.0 if done < 0.7 else 0.3, share=1 / len(learned))
        spelling, writing = update(parameters, learned, loss, optimizers, pool)
        course.note(spelling=spelling, writing=writing)
    others = make_batches(recordings, tokenizer, Lesson(2, 6.0, 9000, prompts=False), Random(SEED + 1))
    report(model, others, model.scores)
