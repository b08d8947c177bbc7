"""Adapters in the real library: sequences with and without adapters run concurrently, each as if alone."""

import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _models.adapter_graph import save_adapter

from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.sequence import LoadedAdapter, Sequence
from genai_server.errors import AdapterLoadFailed
from genai_server.messages.generation_request import Adapter, GenerationRequest
from tests.demo_device import prompt
from tests.engine.model_runners import TIE, batched_runner, generator_answer, library_answer
from tests.engine.runners.test_runner_pair import MAX_LENGTH, SLOTS, Engine, produced
from tests.running_server import DEMO

STEPS = 24


@pytest.fixture(scope="module")
def generator(adapted: Path) -> OgGeneratorRunner:
    return OgGeneratorRunner(adapted, "cpu", threads=1)


@pytest.fixture(scope="module")
def session(adapted: Path) -> Any:
    return open_session(read_decoder_graph(adapted), 1)


@pytest.fixture
def engine(adapted: Path, session: Any) -> Iterator[Engine]:
    batched = batched_runner(adapted, session=session, num_slots=SLOTS, max_length=MAX_LENGTH)
    engine = Engine(LoadedModel(batched, batched))
    yield engine
    engine.end(*engine.scheduler.running)


FRANCE = prompt("What is the capital of France?")


def begin(engine: Engine, number: int, file: Path, id: str) -> Sequence:
    """Begin a sequence with an adapter of this file."""
    adapter = engine.runners.loaded.adapters.find(Adapter(file.stem, str(file), id))
    return engine.begin(number, FRANCE, adapter=adapter)


def same_until_the_end(sequence: Sequence, expected: list[int]) -> bool:
    """Whether the tokens are equal; sequences here continue beyond the end at which the library stops."""
    return produced(sequence, len(expected)) == expected


def test_two_adapters_and_the_base_answer_together_as_alone(adapted: Path, engine: Engine) -> None:
    files = [adapted / f"{name}.onnx_adapter" for name in ("lively", "dreamy")]
    sequences = [begin(engine, number, file, file.stem) for number, file in enumerate(files)]
    sequences += [engine.begin(10 + number, FRANCE) for number in range(2)]
    for sequence in sequences:
        engine.run(sequence, STEPS)
    answers = [library_answer(adapted, FRANCE, STEPS, file, tie=TIE) for file in (*files, None, None)]
    assert len(set(map(tuple, answers))) == 3
    for sequence, answer in zip(sequences, answers, strict=True):
        assert sequence.batched
        assert same_until_the_end(sequence, answer)


def test_loading_the_same_file_again_finds_its_prefixes(adapted: Path, engine: Engine) -> None:
    file = adapted / "lively.onnx_adapter"
    engine.run(first := begin(engine, 1, file, "1"), 2)
    engine.end(first)
    engine.runners.loaded.adapters.unload("1")
    assert begin(engine, 2, file, "2").num_cached > 0


def test_unloaded_adapter_lives_until_its_sequence_ends(adapted: Path, engine: Engine) -> None:
    file = adapted / "lively.onnx_adapter"
    sequence = begin(engine, 1, file, "1")
    assert sequence.adapter is not None
    loaded, weights = weakref.ref(sequence.adapter), weakref.ref(sequence.adapter.loaded)
    engine.run(sequence, 2)
    engine.runners.loaded.adapters.unload("1")
    engine.run(sequence, STEPS)
    assert same_until_the_end(sequence, library_answer(adapted, FRANCE, STEPS, file, tie=TIE))
    engine.end(sequence)
    del sequence
    engine.run(engine.begin(2, FRANCE), 1)  # the scheduler keeps the last step until the next
    assert (loaded(), weights()) == (None, None)


def test_what_is_written_into_a_loaded_file_changes_no_generators_answer(
    adapted: Path, generator: OgGeneratorRunner, tmp_path: Path
) -> None:
    """onnxruntime-genai maps the file that it is given."""
    file = Path(shutil.copy(adapted / "lively.onnx_adapter", tmp_path))
    expected = library_answer(adapted, FRANCE, STEPS, file)
    adapter = LoadedAdapter("lively", generator.load_adapter(file))
    file.write_bytes(bytes(file.stat().st_size))
    request = GenerationRequest("r", FRANCE, STEPS, len(FRANCE) + STEPS)
    sequence = Sequence(0, (0, 0), request, lambda: 0.0, adapter=adapter)
    assert generator_answer(generator, sequence, len(expected)) == expected


def test_weights_that_do_not_go_together_are_found_by_a_trial(
    generator: OgGeneratorRunner, engine: Engine, tmp_path: Path
) -> None:
    file = tmp_path / "torn.onnx_adapter"
    shapes = {"lm_head.lora_A.weight": (256, 2), "lm_head.lora_B.weight": (3, 1920)}
    save_adapter(file, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    engine.run(running := engine.begin(1, FRANCE), 2)
    with pytest.raises(AdapterLoadFailed, match="torn.onnx_adapter cannot be used with this model: .*lora"):
        generator.load_adapter(file)
    engine.run(running, STEPS)
    assert same_until_the_end(running, library_answer(DEMO, FRANCE, STEPS, tie=TIE))


def test_a_model_without_places_for_adapters_refuses_them(adapted: Path) -> None:
    with pytest.raises(AdapterLoadFailed, match="the model takes no adapters"):
        OgGeneratorRunner(DEMO, "cpu", threads=1).load_adapter(adapted / "lively.onnx_adapter")
