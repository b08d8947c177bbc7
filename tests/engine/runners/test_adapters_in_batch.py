"""Rows of several adapters in the passes of a batch: each is as if alone, bit for bit."""

import shutil
from collections import abc
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from _models.adapter_graph import random_weights, save_adapter
from numpy.typing import NDArray

from genai_server.engine.kv_cache.layout import Layout
from genai_server.engine.model.adapter_file import read_adapter_file
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.base import open_bare, run_pass
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.sequence import LoadedAdapter, Sequence
from genai_server.errors import AdapterLoadFailed
from tests.engine.model_runners import batched_runner
from tests.tokens import text

LENGTH, STEPS = 256, 6
RANKS = {"small": 2, "empty": 0, "large": 24}
# The least difference between the logits of several adapters.
APART = 0.1


@pytest.fixture(scope="module")
def session(adapted: Path) -> Any:
    return open_session(read_decoder_graph(adapted), 2)


@pytest.fixture(scope="module")
def batch(adapted: Path, session: Any) -> BatchedRunner:
    return batched_runner(adapted, session=session, num_slots=7, max_length=LENGTH)


@pytest.fixture(scope="module")
def files(adapted: Path, batch: BatchedRunner, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of random weights, of several ranks."""
    folder = tmp_path_factory.mktemp("adapters")
    paths = [path for path in batch.graph.low_rank_paths if "lm_head" not in path.a]
    nodes = ["/" + path.a.removesuffix(".lora_A.weight").replace(".", "/") + "/MatMul" for path in paths]
    shapes = {node: (path.num_inputs, path.num_outputs) for node, path in zip(nodes, paths, strict=True)}
    found = {}
    for seed, (name, rank) in enumerate(RANKS.items()):
        found[name] = folder / f"{name}.onnx_adapter"
        save_adapter(found[name], random_weights(shapes, rank, 0.4, seed))
    return found | {"lively": adapted / "lively.onnx_adapter"}


Logits = NDArray[np.float32]
Company = list[tuple[str | None, int]]


@dataclass
class Rows:
    """A batch and its loaded adapters, by their names. None stands for the model alone."""

    batch: BatchedRunner
    adapters: dict[str | None, LoadedAdapter | None]

    def begin(self, name: str | None, length: int, **fields: Any) -> Sequence:
        return begin(self.batch, self.adapters[name], length, **fields)

    def together(self, *company: tuple[str | None, int]) -> list[list[Logits]]:
        """The logits of rows of these adapters and lengths, in common passes."""
        return decoded(self.batch, [self.begin(*row) for row in company])


@pytest.fixture(scope="module")
def rows(batch: BatchedRunner, files: dict[str, Path]) -> Rows:
    adapters: dict[str | None, LoadedAdapter | None] = {None: None}
    for name, file in files.items():
        adapters[name] = LoadedAdapter(name, batch.load_adapter(file))
    return Rows(batch, adapters)


def begin(batch: BatchedRunner, adapter: LoadedAdapter | None, length: int, **fields: Any) -> Sequence:
    return open_bare(batch, text(length, length), LENGTH, adapter=adapter, **fields)


def decoded(batch: BatchedRunner, sequences: abc.Sequence[Sequence]) -> list[list[Logits]]:
    """Of each sequence, the logits after its prompt and after some tokens, all in common passes."""
    found: list[list[Logits]] = [[] for _ in sequences]
    for step in range(STEPS):
        chunks = [ScheduledChunk.next(sequence, sequence.num_unread) for sequence in sequences]
        for logits, scores in zip(found, run_pass(batch, chunks), strict=True):
            logits.append(scores.last.copy())
        for sequence in sequences:
            sequence.append(10 + step)
    for sequence in sequences:
        batch.close(sequence.id)
    return found


COMPANY: Company = [(None, 12), ("small", 20), ("empty", 9), ("large", 200), (None, 150), ("lively", 14), ("small", 1)]


def test_mixed_rows_are_as_alone_bit_for_bit_in_common_passes(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [rows.together(row)[0] for row in COMPANY]
    scores, passes = rows.batch.session.scores, list[int]()

    def note(layout: Layout, *arguments: Any, **how: Any) -> Any:
        passes.append(layout.num_tokens)
        return scores(layout, *arguments, **how)

    with monkeypatch.context() as patched:
        patched.setattr(rows.batch.session, "scores", note)
        assert all(map(np.array_equal, rows.together(*COMPANY), alone))
    assert passes == [sum(length for _, length in COMPANY), *[len(COMPANY)] * (STEPS - 1)]
    firsts = [rows.together((name, 12))[0][0] for name in (None, "small", "large", "lively")]
    assert min(np.abs(one - other).max() for one, other in combinations(firsts, 2)) > APART


def test_rows_are_the_same_whatever_ranks_they_have_in_the_stack(
    adapted: Path, files: dict[str, Path], rows: Rows
) -> None:
    (expected,) = rows.together(("small", 20))
    session = open_session(read_decoder_graph(adapted), 3)
    other = batched_runner(adapted, session=session, num_slots=7, max_length=LENGTH)
    assert other.stack is not None
    names, first_ranks = ("large", "lively", "small"), set()
    own = {name: LoadedAdapter(name, other.load_adapter(files[name])) for name in names}
    for first in names:
        for name in (first, "small"):
            sequence = begin(other, own[name], 20)
            ranks = other.stack.ranks(sequence.id)
            assert ranks is not None
            first_ranks.add(ranks[0])
            (found,) = decoded(other, [sequence])
            assert np.array_equal(found, expected) == (name == "small")
    assert len(first_ranks) > 1


def test_adapter_of_rank_0_adds_nothing(rows: Rows) -> None:
    small, empty, large, plain = rows.together(("small", 12), ("empty", 12), ("large", 12), (None, 12))
    assert np.array_equal(empty, plain)
    assert not np.array_equal(small, large)


def test_what_is_written_into_a_loaded_file_changes_no_answer(
    batch: BatchedRunner, files: dict[str, Path], tmp_path: Path
) -> None:
    file = Path(shutil.copy(files["lively"], tmp_path))
    ((*before,),) = decoded(batch, [begin(batch, LoadedAdapter("before", batch.load_adapter(file)), 12)])
    adapter = LoadedAdapter("after", batch.load_adapter(file))
    file.write_bytes(bytes(file.stat().st_size))
    ((*after,),) = decoded(batch, [begin(batch, adapter, 12)])
    assert np.array_equal(before, after)


def test_draft_of_an_adapters_row_has_the_bits_of_its_tokens(rows: Rows) -> None:
    (alone,) = rows.together(("small", 20))
    drafting, other = rows.begin("small", 20), rows.begin("large", 9)
    run_pass(rows.batch, [ScheduledChunk.next(row, row.num_unread) for row in (drafting, other)])
    for row in (drafting, other):
        row.append(10)
    found = run_pass(rows.batch, [ScheduledChunk.next(drafting, draft=[11, 12]), ScheduledChunk.next(other)])
    for row in (drafting, other):
        rows.batch.close(row.id)
    assert np.array_equal(found[0].logits, alone[1:4])


def test_prefix_is_found_by_rows_of_the_same_adapter_only(rows: Rows) -> None:
    rows.batch.forget()
    (read,) = rows.together(("small", 40))
    for name, num_cached in (("large", 0), (None, 0), ("small", 38)):
        sequence = rows.begin(name, 40, reuses_past=True)
        assert sequence.num_read == num_cached
        rows.batch.close(sequence.id)
    (again,) = decoded(rows.batch, [rows.begin("small", 40, reuses_past=True)])
    assert np.array_equal(again, read)


def test_preempted_row_continues_with_its_adapter(rows: Rows) -> None:
    batch, (expected,) = rows.batch, rows.together(("small", 20))
    batch.forget()  # without an empty slot, the other sequence would take the row's
    row = rows.begin("small", 20)
    run_pass(batch, [ScheduledChunk.next(row, row.num_unread)])
    row.append(10)
    batch.close(row.id)
    row.preempt()
    other = rows.begin("large", 9)
    row.num_read = batch.open(row)
    assert row.num_read == 20
    (scores, _) = run_pass(batch, [ScheduledChunk.next(row, 1), ScheduledChunk.next(other, other.num_unread)])
    assert np.array_equal(scores.last, expected[1])
    batch.close(row.id)
    batch.close(other.id)


def test_weights_that_are_not_finite_are_refused(batch: BatchedRunner, tmp_path: Path) -> None:
    path, file = batch.graph.low_rank_paths[0], tmp_path / "nan.onnx_adapter"
    zeros = np.zeros((1, path.num_outputs), np.float32)
    save_adapter(file, {path.a: np.full((path.num_inputs, 1), np.nan, np.float32), path.b: zeros})
    with pytest.raises(AdapterLoadFailed, match=rf"nan.onnx_adapter has values in {path.a} that are not finite"):
        batch.load_adapter(file)


def test_batch_of_a_graph_without_inputs_takes_no_adapters(adapted: Path) -> None:
    batch = batched_runner()
    assert not batch.abilities.adapters
    with pytest.raises(AdapterLoadFailed, match="takes no adapters"):
        batch.load_adapter(adapted / "lively.onnx_adapter")


@pytest.mark.parametrize("name", ["small", "lively"])
def test_weights_are_those_that_onnxruntime_reads(files: dict[str, Path], name: str) -> None:
    expected = onnxruntime.AdapterFormat.read_adapter(str(files[name])).get_parameters()
    found = read_adapter_file(files[name])
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[each], expected[each].numpy()) for each in expected)
