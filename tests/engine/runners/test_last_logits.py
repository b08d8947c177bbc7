"""A graph that returns only the last token's logits, as `export` builds them, runs in a batch."""

from pathlib import Path

import numpy as np
import pytest
from _models.driven import Driven

from tests.engine.model_runners import batched_runner
from tests.model_edits import make_pruned_model
from tests.running_server import DEMO

PROMPT = [5, 9, 14, 200, 31, 7]


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pruned") / "model"
    make_pruned_model(directory)
    return directory


def runner(directory: Path) -> Driven:
    return Driven(batched_runner(directory, max_length=64))


def test_its_prompts_and_steps_give_what_the_whole_graph_gives(pruned: Path) -> None:
    found = []
    for directory in (DEMO, pruned):
        batched = runner(directory)
        for sequence in (1, 2):
            batched.open(sequence, PROMPT, 64)
        prefilled = [batched.prefill(sequence, PROMPT[sequence:]) for sequence in (1, 2)]
        found.append(np.stack([*prefilled, *batched.decode([1, 2], [3, 4])]))
    whole, last = found
    assert whole.shape == last.shape
    assert np.array_equal(last, whole)


def test_prompt_logits_come_from_a_pruned_graph_in_a_batch(pruned: Path) -> None:
    found = []
    for directory in (DEMO, pruned):
        batched = runner(directory)
        batched.open(1, PROMPT, 64)
        found.append(batched.prefill(1, PROMPT, positions=True).copy())
    assert found[0].shape[0] == len(PROMPT)
    assert np.array_equal(found[0], found[1])
