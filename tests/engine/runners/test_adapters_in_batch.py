"""Rows of several adapters in the passes of a batch: each is as if alone, bit for bit."""

import shutil
from collections import abc
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


@pytest.fixture(scope="module")
def loaded(batch: BatchedRunner, files: dict[str, Path]) -> dict[str | None, LoadedAdapter | None]:
    adapters = {name: LoadedAdapter(name, batch.load_adapter(file)) for name, file in files.items()}
    return dict[str | None, LoadedAdapter | None](adapters) | {None: None}


Logits = NDArray[np.float32]


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


Company = list[tuple[str | None, int]]
COMPANY: Company = [(None, 12), ("small", 20), ("empty", 9), ("large", 9), (None, 33), ("lively", 14), ("small", 5)]


def together(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None], company: Company, **fields: Any
) -> list[list[Logits]]:
    return decoded(batch, [begin(batch, loaded[name], length, **fields) for name, length in company])


def test_mixed_rows_are_as_alone_bit_for_bit(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    found = together(batch, loaded, COMPANY)
    for row, logits in zip(COMPANY, found, strict=True):
        (alone,) = together(batch, loaded, [row])
        assert np.array_equal(logits, alone), row
    with_others = [found[0][0], *(together(batch, loaded, [(name, 12)])[0][0] for name in ("small", "large", "lively"))]
    spread = min(
        float(np.abs(one - other).max()) for n, one in enumerate(with_others) for other in with_others[n + 1 :]
    )
    assert spread > APART


def test_rows_are_the_same_whatever_ranks_they_have_in_the_stack(
    adapted: Path, files: dict[str, Path], loaded: dict[str | None, LoadedAdapter | None], batch: BatchedRunner
) -> None:
    (expected,) = together(batch, loaded, [("small", 20)])
    other = batched_runner(
        adapted, session=open_session(read_decoder_graph(adapted), 3), num_slots=7, max_length=LENGTH
    )
    assert other.stack is not None
    names = ("large", "lively", "small")
    own = {name: LoadedAdapter(name, other.load_adapter(files[name])) for name in names}
    ranks = set()
    for first in names:
        for name in (first, "small"):
            sequence = begin(other, own[name], 20)
            of_sequence = other.stack.ranks(sequence.id)
            assert of_sequence is not None
            ranks.add(of_sequence)
            (found,) = decoded(other, [sequence])
            assert (np.array_equal(found, expected)) == (name == "small")
    assert len({first for first, _ in ranks}) > 1


def test_long_prompts_share_a_pass_with_other_adapters(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    company: Company = [("large", 200), ("small", 180), (None, 150), ("lively", 1)]
    expected = [together(batch, loaded, [row])[0] for row in company]
    scores, passes = batch.session.scores, list[int]()

    def note(layout: Layout, *arguments: Any, **how: Any) -> Any:
        passes.append(layout.num_tokens)
        return scores(layout, *arguments, **how)

    monkeypatch.setattr(batch.session, "scores", note)
    found = together(batch, loaded, company)
    assert passes == [sum(length for _, length in company), *[len(company)] * (STEPS - 1)]
    for logits, alone in zip(found, expected, strict=True):
        assert np.array_equal(logits, alone)


def test_adapter_of_rank_0_adds_nothing(batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]) -> None:
    company: Company = [("small", 12), ("empty", 12), ("large", 12), (None, 12)]
    small, empty, large, plain = together(batch, loaded, company)
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


def test_draft_of_an_adapters_row_has_the_bits_of_its_tokens(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    (alone,) = together(batch, loaded, [("small", 20)])
    rows = [begin(batch, loaded["small"], 20), begin(batch, loaded["large"], 9)]
    run_pass(batch, [ScheduledChunk.next(row, row.num_unread) for row in rows])
    for row in rows:
        row.append(10)
    found = run_pass(batch, [ScheduledChunk.next(rows[0], draft=[11, 12]), ScheduledChunk.next(rows[1])])
    for row in rows:
        batch.close(row.id)
    assert np.array_equal(found[0].logits, alone[1:4])


def test_prefix_is_found_by_rows_of_the_same_adapter_only(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    batch.forget()
    (read,) = together(batch, loaded, [("small", 40)])
    for name, num_cached in (("large", 0), (None, 0), ("small", 38)):
        sequence = begin(batch, loaded[name], 40, reuses_past=True)
        assert sequence.num_read == num_cached
        batch.close(sequence.id)
    (again,) = decoded(batch, [begin(batch, loaded["small"], 40, reuses_past=True)])
    assert np.array_equal(again, read)


def test_preempted_row_continues_with_its_adapter(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    (expected,) = together(batch, loaded, [("small", 20)])
    batch.forget()  # without an empty slot, the other sequence would take the row's
    row = begin(batch, loaded["small"], 20)
    run_pass(batch, [ScheduledChunk.next(row, row.num_unread)])
    row.append(10)
    batch.close(row.id)
    row.preempt()
    other = begin(batch, loaded["large"], 9)
    row.num_read = batch.open(row)
    assert row.num_read == 20
    (scores, _) = run_pass(batch, [ScheduledChunk.next(row, 1), ScheduledChunk.next(other, other.num_unread)])
    assert np.array_equal(scores.last, expected[1])
    batch.close(row.id)
    batch.close(other.id)


def test_weights_that_are_not_finite_are_refused(batch: BatchedRunner, tmp_path: Path) -> None:
    path = batch.graph.low_rank_paths[0]
    weights = {
        path.a: np.full((path.num_inputs, 1), np.nan, np.float32),
        path.b: np.zeros((1, path.num_outputs), np.float32),
    }
    save_adapter(tmp_path / "nan.onnx_adapter", weights)
    with pytest.raises(AdapterLoadFailed, match=rf"nan.onnx_adapter has values in {path.a} that are not finite"):
        batch.load_adapter(tmp_path / "nan.onnx_adapter")


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
