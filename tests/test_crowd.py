"""Many concurrent requests: each answer is compared with the same request's alone.

CROWD_REQUESTS sets the number; 200 find more in several minutes.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.crowd import Answer, Crowd, make_crowd
from tests.engine.hybrids import BUILT
from tests.engine.quantized_models import write_quantized
from tests.requantized import write_experts, write_floats, write_requantized
from tests.running_server import DEMO
from tests.stepped_engine import SLOTS, SteppedEngine

REQUESTS = int(os.environ.get("CROWD_REQUESTS", "30"))
# The tokens of the demo model, and of those of the real builder.
VOCABULARY, SMALL_VOCABULARY = 1920, 300
# The largest of many thousand differences, relative to that of a few hundred.
MARGIN = 2

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> SteppedEngine:
    return SteppedEngine(DEMO, tmp_path_factory.mktemp("crowd") / "profiles")


@pytest.fixture(scope="module")
def crowd(engine: SteppedEngine) -> Crowd:
    return make_crowd(REQUESTS, random.Random(20), engine.alone)


def departure(answer: Answer, alone: Answer) -> int | None:
    """The index of the first different choice, a token or the end; None if one answer is a prefix of the other."""
    pairs = zip(answer.tokens, alone.tokens, strict=False)
    first = next((number for number, (one, other) in enumerate(pairs) if one != other), None)
    finished = answer.end in ("stop", "length")
    if first is None and finished and (answer.end, answer.tokens) != (alone.end, alone.tokens):
        return min(len(answer.tokens), len(alone.tokens))
    return first


def differences(answer: Answer, alone: Answer) -> list[float]:
    """The largest difference of the logits of each choice, up to the first different one."""
    first = departure(answer, alone)
    compared = min(len(answer.logits), len(alone.logits)) if first is None else first + 1
    pairs = zip(answer.logits[:compared], alone.logits[:compared], strict=True)
    return [float(np.abs(one - other).max()) for one, other in pairs]


def check_all_was_met(engine: SteppedEngine, crowd: Crowd, answers: list[Answer], *, stops: bool) -> None:
    """Check that all requests ended as planned and met every kind of disturbance.

    `stops` says that the model ends some answers itself.
    """
    for asked, answer in zip(crowd.asked, answers, strict=True):
        if answer.end in ("cancelled", "terminated"):
            assert answer.end == asked.fate
            assert len(answer.tokens) >= asked.patience
    ends = Counter(answer.end for answer in answers)
    wanted = {"length", "cancelled", "terminated"} | ({"stop"} if stops else set())
    assert wanted <= set(ends) <= {*wanted, "stop"}
    assert min(ends[end] for end in wanted) >= len(answers) // 20
    # States are reused at their checkpoints only.
    share = 20 if engine.batched.slots.keeps_states else 10
    assert sum(answer.num_cached > 0 for answer in answers) >= len(answers) // share
    if engine.batched.abilities.interrupts:  # elsewhere only chunks that have a pass of their own
        assert engine.batched.num_interrupted >= len(answers) // 20
    assert engine.num_preemptions >= len(answers) // 10
    assert engine.runners.num_profiled >= len(answers) // 3


def check_nothing_is_left(engine: SteppedEngine, crowd: Crowd) -> None:
    """Check that all slots are free and can be emptied, and that later answers are unchanged."""
    slots = engine.batched.slots
    assert slots.num_running == 0
    engine.runners.main.forget()
    assert [slot.tokens for slot in slots.slots] == [[]] * SLOTS
    for asked, alone in zip(crowd.asked[:3], crowd.alone[:3], strict=True):
        assert engine.alone(asked.request).tokens == alone.tokens


def test_lone_greedy_answer_is_the_librarys_within_rounding(engine: SteppedEngine, crowd: Crowd) -> None:
    rounding = MARGIN * engine.rounding()
    num_compared = num_chosen = 0
    for asked, alone in zip(crowd.asked, crowd.alone, strict=True):
        if asked.request.sampling.temperature == 0.0 and asked.request.sampling.repetition_penalty == 1.0:
            library = engine.library(asked.request.prompt, alone.tokens)
            for token, logits, expected in zip(alone.tokens, alone.logits, library, strict=False):
                assert np.abs(logits - expected).max() <= rounding, asked
                num_compared += 1
                num_chosen += int(expected.argmax()) == token
    assert num_chosen > 0.9 * num_compared > 90


@pytest.mark.parametrize("write", [None, write_requantized, write_floats, write_experts])
def test_any_answer_equals_the_lone_one_bit_for_bit(write: Callable[[Path, Path], Path] | None, tmp_path: Path) -> None:
    """In a crowd with drafts, cached prefixes, preemptions, interrupts and profiles, and with other threads."""
    model = DEMO if write is None else write(DEMO, tmp_path / "model")
    check_bits(model, tmp_path, VOCABULARY, stops=True)


@pytest.mark.parametrize(("name", "bits"), [("lfm2", 4), ("qwen-3.5", 8), ("qwen-3.5", None)])
def test_any_answer_of_a_model_with_states_has_the_lone_ones_bits(name: str, bits: int | None, tmp_path: Path) -> None:
    model = BUILT / name if bits is None else write_quantized(BUILT / name, tmp_path / "model", bits)
    check_bits(model, tmp_path, SMALL_VOCABULARY, stops=False)


def check_bits(model: Path, folder: Path, vocabulary: int, *, stops: bool) -> None:
    """Check that answers in company, on three threads, have the bits of lone ones on one thread."""
    lone = SteppedEngine(model, folder / "profiles")
    assert not lone.batched.abilities.why_not_exact
    crowd = make_crowd(REQUESTS, random.Random(43), lone.alone, vocabulary=vocabulary, context=lone.max_length)
    engine = SteppedEngine(model, folder / "profiles", threads=3)
    answers = engine.together(crowd.asked, seed=44)
    for asked, answer, alone in zip(crowd.asked, answers, crowd.alone, strict=True):
        assert departure(answer, alone) is None, asked
        assert not any(differences(answer, alone)), asked
    check_all_was_met(engine, crowd, answers, stops=stops)
    check_nothing_is_left(engine, crowd)
