"""Rows of several adapters in the passes of a batch: each is as if alone, bit for bit where exact."""

import shutil
from collections.abc import Sequence as Several
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from msgspec import structs
from numpy.typing import NDArray

from genai_server.engine.loaded_adapter import LoadedAdapter
from genai_server.engine.model.adapter_file import read_adapter_file
from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.bare_sequences import open_bare
from genai_server.engine.runners.base import run_pass
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.choose import load_model
from genai_server.engine.scheduling.scheduler_output import Read
from genai_server.engine.sequence import Sequence
from genai_server.errors import AdapterLoadFailed
from scripts._models.adapter_graph import random_weights, save_adapter
from scripts._models.engine_spec import engine_spec
from scripts._models.requantized import write_requantized
from tests.engine.model_runners import batched_runner
from tests.tokens import text

LENGTH, STEPS = 256, 6
RANKS = {"small": 2, "empty": 0, "large": 24}
# Rounding, as a share of the logits' standard deviation: 8 bits of activations round sums in another order differently.
CLOSE = 0.1


@pytest.fixture(scope="module")
def session(adapted: Path) -> Any:
    return open_session(read_decoder_graph(adapted), 2, optimized=False)


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


def decoded(batch: BatchedRunner, sequences: Several[Sequence]) -> list[list[Logits]]:
    """Of each sequence, the logits after its prompt and after some tokens, all in common passes."""
    found: list[list[Logits]] = [[] for _ in sequences]
    for step in range(STEPS):
        reads = [Read.next(sequence, sequence.num_unread) for sequence in sequences]
        for logits, scores in zip(found, run_pass(batch, reads), strict=True):
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


def test_mixed_rows_are_as_alone_within_rounding(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    found = together(batch, loaded, COMPANY)
    for row, logits in zip(COMPANY, found, strict=True):
        ((*alone,),) = together(batch, loaded, [row])
        difference = np.sqrt(np.square(np.stack(logits) - np.stack(alone)).mean())
        assert difference <= CLOSE * np.stack(alone).std(), row
    with_others = [found[0][0], *(together(batch, loaded, [(name, 12)])[0][0] for name in ("small", "large", "lively"))]
    spread = min(
        float(np.abs(one - other).max()) for n, one in enumerate(with_others) for other in with_others[n + 1 :]
    )
    assert spread > CLOSE


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


def test_exact_mixed_rows_are_as_alone_bit_for_bit(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    found = together(batch, loaded, COMPANY, exact=True)
    for row, logits in zip(COMPANY, found, strict=True):
        (alone,) = together(batch, loaded, [row], exact=True)
        assert np.array_equal(logits, alone), row


def test_exact_row_is_the_same_next_to_adapters_of_others(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    (alone,) = decoded(batch, [begin(batch, None, 12, exact=True)])
    others = [begin(batch, loaded[name], length) for name, length in COMPANY[1:]]
    found = decoded(batch, [begin(batch, None, 12, exact=True), *others])
    assert np.array_equal(found[0], alone)


def test_draft_of_an_adapters_row_is_read_as_its_tokens_are(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    (alone,) = together(batch, loaded, [("small", 20)])
    rows = [begin(batch, loaded["small"], 20), begin(batch, loaded["large"], 9)]
    run_pass(batch, [Read.next(row, row.num_unread) for row in rows])
    for row in rows:
        row.append(10)
    found = run_pass(batch, [Read.next(rows[0], draft=[11, 12]), Read.next(rows[1])])
    for row in rows:
        batch.close(row.id)
    for logits, expected in zip(found[0].logits, alone[1:4], strict=True):
        assert np.sqrt(np.square(logits - expected).mean()) <= CLOSE * expected.std()


def test_prefix_is_found_by_rows_of_the_same_adapter_only(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    batch.forget()
    together(batch, loaded, [("small", 40)])
    for name, num_cached in (("large", 0), (None, 0), ("small", 38)):
        sequence = begin(batch, loaded[name], 40, reuses_past=True)
        assert sequence.num_read == num_cached
        batch.close(sequence.id)
    exact = begin(batch, loaded["small"], 40, reuses_past=True, exact=True)
    assert exact.num_read == 0  # it was read next to others
    batch.close(exact.id)


def test_paused_row_continues_with_its_adapter(
    batch: BatchedRunner, loaded: dict[str | None, LoadedAdapter | None]
) -> None:
    (expected,) = together(batch, loaded, [("small", 20)])
    batch.forget()  # without an empty slot, the other sequence would take the row's
    row = begin(batch, loaded["small"], 20)
    run_pass(batch, [Read.next(row, row.num_unread)])
    row.append(10)
    batch.close(row.id)
    row.pause()
    other = begin(batch, loaded["large"], 9)
    row.num_read = batch.open(row)
    assert row.num_read == 20
    (scores, _) = run_pass(batch, [Read.next(row, 1), Read.next(other, other.num_unread)])
    assert np.sqrt(np.square(scores.last - expected[1]).mean()) <= CLOSE * expected[1].std()
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


def test_weights_of_8_bits_take_adapters_too(adapted: Path, tmp_path: Path) -> None:
    model = write_requantized(adapted, tmp_path / "model")
    spec = engine_spec(model, 2, LENGTH, tmp_path / "cache")
    spec = structs.replace(spec, settings=structs.replace(spec.settings, prefill_weights="int8"))
    batch = load_model(spec).main
    assert isinstance(batch, BatchedRunner)
    assert batch.sessions.int8 is not None
    adapter = LoadedAdapter("lively", batch.load_adapter(adapted / "lively.onnx_adapter"))
    first = []
    for int8_from in (None, 1):
        batch.abilities = replace(batch.abilities, int8_from=int8_from)
        for company in ([adapter, None], [None, adapter]):
            first.append([logits[0] for logits in decoded(batch, [begin(batch, one, 40) for one in company])])
    (own, base), (base_again, own_again), (eight, base_eight), (_, eight_again) = first
    assert not np.array_equal(own, eight)
    for one, other in ((own, eight), (own, eight_again), (own, own_again), (base, base_again), (base, base_eight)):
        assert np.sqrt(np.square(one - other).mean()) <= CLOSE * one.std()
    assert np.abs(eight - base_eight).max() > 1
