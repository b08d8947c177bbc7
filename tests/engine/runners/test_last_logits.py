"""A graph that returns only the last token's logits, as `export` builds them, runs in a batch."""

from pathlib import Path

import numpy as np
from _models.driven import Driven

from tests.engine.model_runners import batched_runner
from tests.model_edits import make_pruned_model
from tests.running_server import DEMO

PROMPT = [5, 9, 14, 200, 31, 7]


def test_its_prompts_positions_and_steps_give_what_the_whole_graph_gives(tmp_path: Path) -> None:
    make_pruned_model(tmp_path / "pruned")
    found = []
    for directory in (DEMO, tmp_path / "pruned"):
        batched = Driven(batched_runner(directory, max_length=64))
        for sequence in (1, 2, 3):
            batched.open(sequence, PROMPT, 64)
        logits = [batched.prefill(sequence, PROMPT[sequence:]) for sequence in (1, 2)]
        positions = batched.prefill(3, PROMPT, positions=True)
        found.append(np.stack([*logits, *positions, *batched.decode([1, 2], [3, 4])]))
    whole, last = found
    assert len(last) == 2 + len(PROMPT) + 2
    assert np.array_equal(last, whole)
