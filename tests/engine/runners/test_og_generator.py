"""The runner over the real library, on the demo model."""

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from _models.driven import Driven

from genai_server.engine.runners import og_generator as module
from genai_server.engine.runners.base import Terminated
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.sequence import Sequence
from genai_server.errors import ConfigurationError, RunnerFailed
from genai_server.messages.generation_request import GenerationRequest
from tests.demo_device import prompt
from tests.engine.model_runners import library_answer
from tests.running_server import DEMO

STEPS = 30


@pytest.fixture(name="generator")
def driven(generator: OgGeneratorRunner) -> Driven:
    return Driven(generator)


Open = Callable[..., int]


@pytest.fixture
def opened(generator: Driven) -> Iterator[Open]:
    """Opens sequences; closes them all at the end."""
    sequences: list[int] = []

    def open_one(max_length: int = 512) -> int:
        sequences.append(len(sequences))
        assert generator.open(sequences[-1], [], max_length) == 0
        return sequences[-1]

    yield open_one
    for sequence in sequences:
        generator.close(sequence)


COUNT = prompt("Count from 1 to 150.")


def greedy(generator: Driven, sequence: int, tokens: list[int], steps: int) -> list[int]:
    found = [int(generator.prefill(sequence, tokens).argmax())]
    while len(found) < steps:
        found.append(int(generator.decode([sequence], found[-1:]).argmax()))
    return found


def test_the_token_for_padding_is_read_like_any_other(generator: Driven, opened: Open) -> None:
    tokens = [*COUNT, json.loads((DEMO / "genai_config.json").read_text())["model"]["pad_token_id"]]
    at_once, sequence = generator.prefill(opened(), tokens), opened()
    # One after the other, no token is taken for padding.
    generator.prefill(sequence, tokens[:1])
    for token in tokens[1:]:
        one_by_one = generator.decode([sequence], [token])[0]
    assert np.allclose(at_once, one_by_one, atol=0.2)


@pytest.mark.parametrize("most", [1, 20, 100, 2048])
def test_exact_prompts_are_cut_at_the_same_tokens(generator: Driven, most: int) -> None:
    request = GenerationRequest("r", [5] * 101, 20, 700, exact=True)
    sequence = Sequence(1, (0, 1), request, lambda: 0.0)
    chunks = []
    for num_produced in (0, 3):  # from the beginning, and again after a preemption
        sequence.tokens += [6] * num_produced
        sequence.num_read = 0
        while sequence.num_unread:
            chunks.append(generator.fit_chunk(sequence, most))
            sequence.num_read += chunks[-1]
    assert chunks == [64, 37, 64, 37, 1, 1, 1]


def test_our_sampling_over_the_logits_gives_the_librarys_tokens(generator: Driven, opened: Open) -> None:
    assert greedy(generator, opened(), COUNT, STEPS) == library_answer(DEMO, COUNT, STEPS)


def test_a_prompt_in_chunks_gives_the_same_logits_as_in_one(generator: Driven, opened: Open) -> None:
    tokens = prompt("What is the capital of France? " * 5)
    whole, chunked = generator.prefill(opened(), tokens).copy(), opened()
    for begin in range(0, len(tokens), 7):
        logits = generator.prefill(chunked, tokens[begin : begin + 7])
    assert int(logits.argmax()) == int(whole.argmax())


def test_sequences_do_not_mix(generator: Driven, opened: Open) -> None:
    prompts = {opened(): COUNT, opened(): prompt("Hello!")}
    tokens, found = dict(prompts), {sequence: list[int]() for sequence in prompts}
    for _ in range(10):
        for sequence in prompts:
            tokens[sequence] = [int(generator.prefill(sequence, tokens[sequence]).argmax())]
            found[sequence] += tokens[sequence]
    for sequence, own in prompts.items():
        assert found[sequence] == greedy(generator, opened(), own, 10)


def test_terminate_raises_at_the_next_pass_and_can_be_undone(generator: Driven, opened: Open) -> None:
    sequence, expected = opened(), greedy(generator, opened(), COUNT, 6)
    assert greedy(generator, sequence, COUNT, 3) == expected[:3]
    generator.set_runtime_option(sequence, "terminate_session", "1")
    with pytest.raises(Terminated):
        generator.decode([sequence], expected[2:3])
    generator.set_runtime_option(sequence, "terminate_session", "0")
    assert greedy(generator, sequence, expected[2:3], 3) == expected[3:]


def test_profiling_writes_one_file_for_each_pass_and_none_after(
    generator: Driven, opened: Open, tmp_path: Path
) -> None:
    sequence = opened()
    last = greedy(generator, sequence, COUNT, 2)[-1:]
    generator.set_runtime_option(sequence, "enable_profiling", str(tmp_path / "mine"))
    generator.decode([sequence], last)
    generator.set_runtime_option(sequence, "enable_profiling", "0")
    generator.decode([sequence], last)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("mine_")
    assert any(event.get("cat") == "Node" for event in json.loads(file.read_text()))


def test_library_error_is_translated(generator: Driven, opened: Open) -> None:
    sequence = opened(16)
    with pytest.raises(RunnerFailed, match="max length"):
        generator.prefill(sequence, [1] * 17)


def test_prompt_returns_logits_of_each_position_on_demand(generator: Driven, opened: Open) -> None:
    tokens = [7 * token % 1900 + 10 for token in range(50)]
    positions = generator.prefill(opened(), tokens, positions=True).copy()
    assert positions.shape == (len(tokens), generator.model.vocab_size)
    for length in (2, 20, 50):
        assert generator.prefill(opened(), tokens[:length]) == pytest.approx(positions[length - 1], abs=1e-3)


def test_graph_with_logits_of_the_last_token_only_is_reported(
    generator: Driven, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = opened()
    library = generator._generators[sequence]
    last_only = SimpleNamespace(
        append_tokens=library.append_tokens, get_output=lambda name: library.get_output(name)[:, -1:]
    )
    monkeypatch.setitem(generator._generators, sequence, last_only)
    with pytest.raises(RunnerFailed, match="logits for 1 of 5 tokens"):
        generator.prefill(sequence, [10, 20, 30, 40, 50], positions=True)


@pytest.mark.parametrize("brings_one", [True, False])
def test_packages_own_runtime_is_loaded_before_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, brings_one: bool
) -> None:
    """As onnxruntime-genai-winml does; tested by its files only, without Windows."""
    package = tmp_path / "onnxruntime_genai"
    package.mkdir()
    (package / "__init__.py").touch()
    if brings_one:
        (package / "onnxruntime.dll").touch()
    loaded: list[str] = []
    monkeypatch.delitem(sys.modules, "onnxruntime_genai", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    module._load_own_runtime()
    assert loaded == [str(package / "onnxruntime.dll")] * brings_one


@pytest.mark.parametrize(
    ("device", "found", "message"),
    [
        ("cuda", None, "(?i)cuda.*; the extra cuda has it: .*cuda"),
        ("openvino", None, "pip install onnxruntime-ep-openvino, and write package = "),
        (
            "openvino",
            "provider openvino: no device",
            "^provider openvino: no device; onnxruntime-genai says: OpenVINO ",
        ),
    ],
)
def test_missing_device_is_reported_with_the_librarys_message_and_what_to_install(
    device: str, found: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if found is not None:
        monkeypatch.setattr(module, "missing_device", lambda _: found)
    with pytest.raises(ConfigurationError, match=message):
        OgGeneratorRunner(DEMO, device, threads=1)
