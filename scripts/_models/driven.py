"""A runner in the program's own process, driven by the ids of sequences, with tokens of the caller's choice."""

from __future__ import annotations

import random
from collections import abc
from pathlib import Path
from typing import Any

import numpy as np

from genai_server.config import sources
from genai_server.config.settings import Settings
from genai_server.engine.runners.base import Runner, open_bare
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scores import Logits, Scores
from genai_server.engine.sequence import Sequence
from genai_server.messages.launch import EngineSpec

from .family import VOCABULARY

# What a pass reads of a sequence: its id, the tokens, whether it decodes, and a draft behind the tokens.
Tokens = tuple[int, list[int], bool] | tuple[int, list[int], bool, list[int]]


def engine_spec(directory: Path, slots: int, max_length: int, cache_dir: Path | None = None) -> EngineSpec:
    """An engine on the CPU, with only what its model needs, for as many sequences of at most `max_length` tokens.

    Weights are packed in `cache_dir`, if there is one.
    """
    given = {
        "max_batch_size": slots,
        "max_length": max_length,
        "cache_dir": str(cache_dir or "none"),
        "speculation": "off",
        "draft_memory_bytes": 0,
        "encoder_weights": "own",
        "encoder_cache_bytes": 0,
        "log_level": "warning",
    }
    return sources.engine_spec(Settings.model_validate(given), "cpu", str(directory))


def random_prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens that every model of these scripts has."""
    chance = random.Random(f"{seed} {length}")
    return [chance.randrange(3, VOCABULARY) for _ in range(length)]


class Driven:
    """Sequences on a runner. Everything that is not here is the runner's own."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._sequences: dict[int, Sequence] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def open(self, sequence: int, prompt: list[int], max_length: int, *, reuse: bool = True, **fields: Any) -> int:
        """Begin a sequence; returns how many tokens of its prompt come from a cached prefix."""
        opened = open_bare(self.runner, prompt, max_length, id=sequence, reuses_past=reuse, **fields)
        self._sequences[sequence] = opened
        return opened.num_read

    def prefill(self, sequence: int, tokens: abc.Sequence[int], *, positions: bool = False) -> Logits:
        """Read tokens as a prompt's; returns the logits [vocab_size] after the last, or [tokens, vocab_size]."""
        chunk = ScheduledChunk(self._sequences[sequence], list(tokens), positions=positions)
        logits = self.runner.forward([chunk])[0].logits
        found: Logits = logits if positions else logits[-1]
        return found

    def decode(self, sequences: abc.Sequence[int], tokens: abc.Sequence[int]) -> Logits:
        """Read one more token of each sequence; returns the logits [sequences, vocab_size]."""
        return np.concatenate([scores.logits for scores in self.advance(sequences, tokens)])

    def advance(self, sequences: abc.Sequence[int], tokens: abc.Sequence[int]) -> list[Scores]:
        """As `decode`; returns the scores."""
        pairs = zip(sequences, tokens, strict=True)
        return self.runner.forward([ScheduledChunk(self._sequences[id], [token], decodes=True) for id, token in pairs])

    def read(self, *chunks: Tokens) -> list[Scores]:
        """Run one pass over all of them."""
        return self.runner.forward(
            [
                ScheduledChunk(self._sequences[id], [*tokens, *draft], draft, decodes=decodes)
                for id, tokens, decodes, *drafts in chunks
                for draft in (drafts or [[]])
            ]
        )
