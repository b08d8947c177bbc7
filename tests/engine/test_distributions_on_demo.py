"""Batched answers of the demo model have the probabilities of the library's logits."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.messages.generation_request import FinishReason, Sampling
from tests.demo_device import MAX_LENGTH, DemoDevice, prompt
from tests.engine.model_runners import batched_runner, greedy_logits
from tests.engine.test_distributions import END, Answer, deviation, guided_reference
from tests.running_server import DEMO

ANSWERS = 2000
# An end token would be rare.
SAMPLING: dict[str, Any] = {"temperature": 2.0, "top_k": 8, "min_p": 0.02, "logit_bias": {2: 9.0}}
TEXT = "Say yes or no."
LETTERS = r"[A-Za-z ]*"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_guided_answers_in_a_batch_have_their_probabilities(
    generator: OgGeneratorRunner, session: Any, tmp_path: Path
) -> None:
    (end,) = generator.model.eos_token_ids
    vocabulary = json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"]
    free, fits = np.ones((2, generator.model.vocab_size), bool)
    for text, token in vocabulary.items():
        fits[token] = re.fullmatch(LETTERS, text.replace("Ġ", " ")) is not None
    fits[end] = True

    expected: dict[Answer, float] = defaultdict(float)
    asked = prompt(TEXT)
    first = guided_reference(greedy_logits(generator, asked, 1)[0], SAMPLING, asked, (), free, fits)
    expected[(END,)] = first[end]
    for token in set(np.flatnonzero(first).tolist()) - {end}:
        logits = greedy_logits(generator, [*asked, token], 1)[0]
        second = guided_reference(logits, SAMPLING, asked, (token,), free, fits)
        expected |= {(token, other): first[token] * second[other] for other in np.flatnonzero(second).tolist()}
        expected[token, END] = expected.pop((token, end), 0.0)
    assert sum(expected.values()) == pytest.approx(1)

    runner = batched_runner(session=session, num_slots=6, max_length=MAX_LENGTH)
    device = DemoDevice(LoadedModel(runner, runner), model_guidance(DEMO, generator.model), tmp_path)
    fields: dict[str, Any] = {"grammar": LLMatcher.grammar_from_regex(LETTERS), "needs_grammar": False, "max_tokens": 2}
    counts = Counter[Answer]()
    for first_seed in range(0, ANSWERS, 10):
        seeds = range(first_seed, first_seed + 10)
        for seed in seeds:
            device.submit(seed, TEXT, sampling=Sampling(**SAMPLING, seed=seed), **fields)
        device.run(*seeds)
        for seed in seeds:
            ended = [END] if device.reason(seed) is FinishReason.STOP else []
            counts[*device.tokens(seed), *ended] += 1
        device.sent.clear()
    assert counts.keys() <= expected.keys()
    assert sum(counts[answer] for answer in counts if END in answer) > ANSWERS / 10
    assert deviation(counts, expected) < 4
