"""Adapters in the real library: sequences with and without adapters run concurrently, each as if alone."""

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnxruntime
import pytest

from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.base import Abilities
from genai_server.engine.runners.batched import BatchedRunner, BatchLimits
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.runner_pair import NOT_EXACT, RunnerPair
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.sequence import Sequence
from genai_server.errors import AdapterLoadFailed
from genai_server.messages.generation_request import GenerationRequest
from genai_server.text.codec import load_text_codec
from tests.engine.runners.test_runner_pair import MAX_LENGTH, SLOTS, Engine, produced
from tests.running_server import DEMO

STEPS = 24
NAMES = ("lively", "dreamy")


@pytest.fixture(scope="module")
def generator(adapted: Path) -> OgGeneratorRunner:
    return OgGeneratorRunner(adapted, "cpu", threads=1)


@pytest.fixture(scope="module")
def session(adapted: Path) -> Any:
    return open_session(read_decoder_graph(adapted), 1, optimized=False)


@pytest.fixture(scope="module")
def loaded(adapted: Path, generator: OgGeneratorRunner) -> dict[str, object]:
    return {name: generator.load_adapter(adapted / f"{name}.onnx_adapter") for name in NAMES}


class Adapted(Engine):
    """An engine whose sequences may have an adapter."""

    def begin_with(self, number: int, prompt: list[int], adapter: object, **fields: Any) -> Sequence:
        request = GenerationRequest(f"r{number}", prompt, 400, MAX_LENGTH, **fields)
        sequence = Sequence(number, (0, number), request, lambda: 0.0, adapter=adapter)
        self.scheduler.add(sequence)
        self.scheduler.admit()
        self.runners.open(sequence)
        return sequence


@pytest.fixture
def engine(adapted: Path, generator: OgGeneratorRunner, session: Any) -> Iterator[Adapted]:
    graph = read_decoder_graph(adapted)
    batched = BatchedRunner(graph, session, generator.model, BatchLimits(SLOTS, MAX_LENGTH))
    engine = Adapted(RunnerPair(generator, batched))
    yield engine
    engine.end(*engine.scheduler.running)
    assert generator._generators == {}


@cache
def question(content: str) -> list[int]:
    codec = load_text_codec(DEMO, "cpu")
    return asyncio.run(codec.encode_chat([{"role": "user", "content": content}]))


FRANCE = "What is the capital of France?"


def bare(model_dir: Path, prompt: list[int], adapter: Path | None = None) -> list[int]:
    """The library's greedy loop, as in its documentation; it ends with the answer."""
    import onnxruntime_genai as og

    model = og.Model(str(model_dir))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + STEPS, do_sample=False)
    generator = og.Generator(model, parameters)
    adapters = og.Adapters(model)
    if adapter is not None:
        adapters.load(str(adapter), "any")
        generator.set_active_adapter(adapters, "any")
    generator.append_tokens(np.array(prompt, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]


def same_until_the_end(sequence: Sequence, expected: list[int]) -> bool:
    """Whether the tokens are equal; sequences here continue beyond the end at which the library stops."""
    return produced(sequence, len(expected)) == expected


def test_model_with_adapters_runs_in_a_batch_unchanged(adapted: Path, engine: Adapted) -> None:
    sequence = engine.begin(1, question(FRANCE))
    engine.run(sequence, STEPS)
    assert sequence.batched
    assert same_until_the_end(sequence, bare(DEMO, question(FRANCE)))


def test_two_adapters_and_the_base_answer_together_as_alone(
    adapted: Path, engine: Adapted, loaded: dict[str, object]
) -> None:
    files = {name: adapted / f"{name}.onnx_adapter" for name in NAMES}
    with_adapter = {name: engine.begin_with(n, question(FRANCE), loaded[name]) for n, name in enumerate(NAMES)}
    base = [engine.begin(10 + number, question(FRANCE)) for number in range(2)]
    for sequence in (*with_adapter.values(), *base):
        engine.run(sequence, STEPS)
    answers = {name: bare(adapted, question(FRANCE), files[name]) for name in NAMES}
    plain = bare(adapted, question(FRANCE))
    assert len({tuple(answer) for answer in (*answers.values(), plain)}) == 3
    for name, sequence in with_adapter.items():
        assert not sequence.batched
        assert same_until_the_end(sequence, answers[name])
    for sequence in base:
        assert sequence.batched
        assert same_until_the_end(sequence, plain)


def test_past_is_never_shared_between_adapters(engine: Adapted, loaded: dict[str, object]) -> None:
    prompt = question(FRANCE) * 3
    first = engine.begin_with(1, prompt, loaded["dreamy"])
    engine.run(first, 2)
    engine.end(first)
    base = engine.begin(2, prompt)
    assert base.num_cached == 0
    engine.run(base, 2)
    engine.end(base)
    for number, adapter in enumerate(loaded.values(), 3):
        assert engine.begin_with(number, prompt, adapter).num_cached == 0
    assert engine.begin(9, prompt).num_cached > 0


def test_exact_answer_with_an_adapter_is_the_same_in_company(engine: Adapted, loaded: dict[str, object]) -> None:
    prompt = question(FRANCE)
    alone = engine.begin_with(1, prompt, loaded["dreamy"], exact=True)
    engine.run(alone, STEPS)
    engine.end(alone)
    base = engine.begin(2, question("Count from 1 to 20."))
    engine.run(base, 3)
    in_company = engine.begin_with(3, prompt, loaded["dreamy"], exact=True)
    engine.begin_with(4, prompt, loaded["lively"])
    engine.run(in_company, STEPS)
    assert produced(in_company, STEPS) == produced(alone, STEPS)


def test_sequence_with_an_adapter_is_profiled_in_place(
    engine: Adapted, loaded: dict[str, object], tmp_path: Path
) -> None:
    sequence = engine.begin_with(1, question(FRANCE), loaded["lively"], exact=True)
    engine.run(sequence, 3)
    assert engine.runners.no_profile(sequence) is None
    read = sequence.num_read
    engine.runners.to_generator(sequence)
    engine.runners.generator.set_runtime_option(sequence.id, "enable_profiling", str(tmp_path / "adapted"))
    engine.run(sequence, 4)
    engine.runners.generator.set_runtime_option(sequence.id, "enable_profiling", "0")
    engine.runners.to_batch(sequence)
    assert (sequence.batched, sequence.num_read) == (False, read + 1)
    (profile,) = tmp_path.glob("adapted_*.json")
    names = {event["name"] for event in json.loads(profile.read_text(encoding="utf-8"))}
    assert any("lora" in name for name in names)


def test_exact_sequence_with_an_adapter_can_be_profiled() -> None:
    pair = RunnerPair(
        ScriptedRunner(), cast(BatchedRunner, SimpleNamespace(abilities=Abilities("batched", exact=False)))
    )
    request = GenerationRequest("r", [1], 10, 20, exact=True)
    assert pair.no_profile(Sequence(1, (0, 1), request, lambda: 0.0)) == NOT_EXACT
    assert pair.no_profile(Sequence(2, (0, 2), request, lambda: 0.0, adapter=b"any")) is None


def test_unloaded_adapter_lives_until_its_sequence_ends(
    adapted: Path, engine: Adapted, generator: OgGeneratorRunner
) -> None:
    file = adapted / "lively.onnx_adapter"
    adapter = generator.load_adapter(file)
    sequence = engine.begin_with(1, question(FRANCE), adapter)
    engine.run(sequence, 2)
    sequence.adapter = adapter = None
    engine.run(sequence, STEPS)
    assert same_until_the_end(sequence, bare(adapted, question(FRANCE), file))


def test_weights_that_do_not_go_together_are_found_by_a_trial(
    generator: OgGeneratorRunner, engine: Adapted, tmp_path: Path
) -> None:
    file = tmp_path / "torn.onnx_adapter"
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    torn = {"lm_head.lora_A.weight": np.ones((256, 2)), "lm_head.lora_B.weight": np.ones((3, 1920))}
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(w.astype(np.float32)) for n, w in torn.items()}
    adapter.set_parameters(values)
    adapter.export_adapter(str(file))
    running = engine.begin(1, question(FRANCE))
    engine.run(running, 2)
    with pytest.raises(AdapterLoadFailed, match="torn.onnx_adapter cannot be used with this model: .*lora"):
        generator.load_adapter(file)
    engine.run(running, STEPS)
    assert same_until_the_end(running, bare(DEMO, question(FRANCE)))


def test_a_model_without_places_for_adapters_refuses_them(adapted: Path) -> None:
    with pytest.raises(AdapterLoadFailed, match="the model takes no adapters"):
        OgGeneratorRunner(DEMO, "cpu", threads=1).load_adapter(adapted / "lively.onnx_adapter")
