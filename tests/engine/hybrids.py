"""Models with layers that keep states of fixed size, and the answers of their Generators."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from _models.driven import Driven

from genai_server.config.settings import Settings
from genai_server.config.sources import engine_spec
from genai_server.engine.runners.load_model import load_batched
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import StepPolicy
from genai_server.engine.scores import Logits
from tests.running_server import ROOT
from tests.stepped_loop import SteppedLoop

BUILT = ROOT / "tests" / "built_models"
LENGTH, SLOTS, STEPS, VOCAB = 256, 5, 12, 300


class Hybrid:
    """A model in the batch, and its Generator."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.generator = Driven(OgGeneratorRunner(self.path, "cpu", threads=1))
        self.spec = msgspec.structs.replace(
            engine_spec(Settings.model_validate({}), "cpu", str(path)),
            max_length=LENGTH,
            max_batch_size=SLOTS,
            cache_dir="",
            threads=1,
            **settings,
        )
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def load(self, **settings: object) -> Driven:
        spec = msgspec.structs.replace(self.spec, **settings)
        return Driven(load_batched(spec, self.path, self.generator.runner.model))

    def answer(self, prompt: list[int]) -> list[int]:
        """The greedy answer of a Generator."""
        key = tuple(prompt)
        if key not in self._answers:
            self.generator.open(0, prompt, LENGTH)
            logits, tokens = self.generator.prefill(0, prompt), list[int]()
            while len(tokens) < STEPS:
                tokens.append(int(logits.argmax()))
                logits = self.generator.decode([0], tokens[-1:])[0]
            self.generator.close(0)
            self._answers[key] = tokens
        return self._answers[key]


def loop_of(loaded: LoadedModel, folder: Path, *, speculates: bool = True) -> SteppedLoop:
    policy = StepPolicy(speculates=speculates)
    scheduler = Scheduler(loaded.main, max_running=SLOTS, max_waiting=SLOTS, prefill_chunk=32, policy=policy)
    return SteppedLoop(loaded, scheduler, Guidance(None, VOCAB), folder)


def put_request(loop: SteppedLoop, key: int, prompt: list[int], **fields: Any) -> None:
    """Send a request for an answer of STEPS tokens, unless the fields say otherwise."""
    loop.put_request(key, prompt, **{"max_tokens": STEPS, "max_length": LENGTH, "ignore_eos": True} | fields)


def text(length: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng((seed, length)).integers(3, VOCAB, length).tolist()
    return found


def best(logits: Logits) -> int:
    return int(logits.argmax())


def begin(runner: Driven, sequence: int, prompt: list[int], **how: Any) -> int:
    """Open a sequence and read its prompt; returns the best token behind it."""
    cached = runner.open(sequence, prompt, LENGTH, **how)
    return best(runner.prefill(sequence, prompt[cached:]))


def finish(runner: Driven, sequence: int, token: int, num_tokens: int = STEPS) -> list[int]:
    """The greedy answer that begins with a token; the sequence ends."""
    tokens = [token]
    while len(tokens) < num_tokens:
        tokens.append(best(runner.decode([sequence], tokens[-1:])[0]))
    runner.close(sequence)
    return tokens
