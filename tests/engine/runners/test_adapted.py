"""Adapters in the real library: sequences with and without adapters run concurrently, each as if alone."""

import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.base import open_bare, run_pass
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.sequence import LoadedAdapter, Sequence
from genai_server.errors import AdapterLoadFailed
from genai_server.messages.generation_request import Adapter
from tests.demo_device import prompt
from tests.engine.model_runners import TIE, batched_runner, library_answer
from tests.engine.runners.test_runner_pair import MAX_LENGTH, SLOTS, Engine, produced
from tests.running_server import DEMO

STEPS = 24
NAMES = ("lively", "dreamy")


@pytest.fixture(scope="module")
def generator(adapted: Path) -> OgGeneratorRunner:
    return OgGeneratorRunner(adapted, "cpu", threads=1)


@pytest.fixture(scope="module")
def session(adapted: Path) -> Any:
    return open_session(read_decoder_graph(adapted), 1)


@pytest.fixture
def loaded(adapted: Path, engine: Engine) -> dict[str, LoadedAdapter]:
    files = {name: adapted / f"{name}.onnx_adapter" for name in NAMES}
    return {name: engine.runners.loaded.adapters.find(Adapter(name, str(file), name)) for name, file in files.items()}


@pytest.fixture
def engine(adapted: Path, session: Any) -> Iterator[Engine]:
    batched = batched_runner(adapted, session=session, num_slots=SLOTS, max_length=MAX_LENGTH)
    engine = Engine(LoadedModel(batched, batched))
    yield engine
    engine.end(*engine.scheduler.running)


FRANCE = prompt("What is the capital of France?")


def same_until_the_end(sequence: Sequence, expected: list[int]) -> bool:
    """Whether the tokens are equal; sequences here continue beyond the end at which the library stops."""
    return produced(sequence, len(expected)) == expected


def test_two_adapters_and_the_base_answer_together_as_alone(
    adapted: Path, engine: Engine, loaded: dict[str, LoadedAdapter]
) -> None:
    files = {name: adapted / f"{name}.onnx_adapter" for name in NAMES}
    with_adapter = {name: engine.begin(n, FRANCE, adapter=loaded[name]) for n, name in enumerate(NAMES)}
    base = [engine.begin(10 + number, FRANCE) for number in range(2)]
    for sequence in (*with_adapter.values(), *base):
        engine.run(sequence, STEPS)
    answers = {name: library_answer(adapted, FRANCE, STEPS, files[name], tie=TIE) for name in NAMES}
    plain = library_answer(adapted, FRANCE, STEPS, tie=TIE)
    assert len({tuple(answer) for answer in (*answers.values(), plain)}) == 3
    for name, sequence in with_adapter.items():
        assert sequence.batched
        assert same_until_the_end(sequence, answers[name])
    for sequence in base:
        assert sequence.batched
        assert same_until_the_end(sequence, plain)


def test_loading_the_same_file_again_finds_its_prefixes(adapted: Path, engine: Engine) -> None:
    adapters = engine.runners.loaded.adapters
    file = str(adapted / "lively.onnx_adapter")
    first = engine.begin(1, FRANCE, adapter=adapters.find(Adapter("lively", file, "1")))
    engine.run(first, 2)
    engine.end(first)
    adapters.unload("1")
    assert engine.begin(2, FRANCE, adapter=adapters.find(Adapter("lively", file, "2"))).num_cached > 0


def test_unloaded_adapter_lives_until_its_sequence_ends(adapted: Path, engine: Engine) -> None:
    adapters = engine.runners.loaded.adapters
    file = adapted / "lively.onnx_adapter"
    sequence = engine.begin(1, FRANCE, adapter=adapters.find(Adapter("lively", str(file), "1")))
    assert sequence.adapter is not None
    loaded = weakref.ref(sequence.adapter)
    engine.run(sequence, 2)
    adapters.unload("1")
    engine.run(sequence, STEPS)
    assert same_until_the_end(sequence, library_answer(adapted, FRANCE, STEPS, file, tie=TIE))
    engine.end(sequence)
    del sequence
    engine.run(engine.begin(2, FRANCE), 1)  # the scheduler keeps the last step until the next
    assert loaded() is None


def test_what_is_written_into_a_loaded_file_changes_no_generators_answer(
    adapted: Path, generator: OgGeneratorRunner, tmp_path: Path
) -> None:
    """onnxruntime-genai maps the file that it is given."""
    expected = library_answer(adapted, FRANCE, STEPS, adapted / "lively.onnx_adapter")
    file = Path(shutil.copy(adapted / "lively.onnx_adapter", tmp_path))
    adapter = LoadedAdapter("lively", generator.load_adapter(file))
    file.write_bytes(bytes(file.stat().st_size))
    sequence = open_bare(generator, FRANCE, len(FRANCE) + STEPS, adapter=adapter)
    while sequence.num_produced < len(expected):
        (scores,) = run_pass(generator, [ScheduledChunk.next(sequence, sequence.num_unread)])
        sequence.append(int(scores.last.argmax()))
    generator.close(sequence.id)
    assert produced(sequence, len(expected)) == expected


def test_weights_that_do_not_go_together_are_found_by_a_trial(
    generator: OgGeneratorRunner, engine: Engine, tmp_path: Path
) -> None:
    file = tmp_path / "torn.onnx_adapter"
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    torn = {"lm_head.lora_A.weight": np.ones((256, 2)), "lm_head.lora_B.weight": np.ones((3, 1920))}
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(w.astype(np.float32)) for n, w in torn.items()}
    adapter.set_parameters(values)
    adapter.export_adapter(str(file))
    running = engine.begin(1, FRANCE)
    engine.run(running, 2)
    with pytest.raises(AdapterLoadFailed, match="torn.onnx_adapter cannot be used with this model: .*lora"):
        generator.load_adapter(file)
    engine.run(running, STEPS)
    assert same_until_the_end(running, library_answer(DEMO, FRANCE, STEPS, tie=TIE))


def test_a_model_without_places_for_adapters_refuses_them(adapted: Path) -> None:
    with pytest.raises(AdapterLoadFailed, match="the model takes no adapters"):
        OgGeneratorRunner(DEMO, "cpu", threads=1).load_adapter(adapted / "lively.onnx_adapter")
