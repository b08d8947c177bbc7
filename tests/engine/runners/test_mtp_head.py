"""Drafts of a model's own head for multi-token prediction, on the builder's graphs of a small Qwen 3.5.

What the head drafts is compared with its graph, run by ONNX Runtime alone over the complete sequence.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest
from msgspec import structs
from numpy.typing import NDArray

from genai_server.engine.runners.draft_model import MAX_KEPT, MtpHead, _States
from genai_server.engine.runners.load_model import load_model
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.scheduling.drafts import NO_DRAFT, TextDrafts
from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.sequence import Sequence
from genai_server.messages.admin import SetRuntimeOption
from genai_server.messages.generation_request import Sampling
from tests.engine.hybrids import BUILT, SLOTS, STEPS, Hybrid, loop_of, put_request, text
from tests.engine.quantized_models import write_halved
from tests.model_edits import edited_config
from tests.stepped_loop import SteppedLoop

Array = NDArray[Any]
NUM_LAYERS_WITH_KEYS = 1


@pytest.fixture(scope="module")
def hybrid() -> Hybrid:
    return Hybrid(BUILT / "qwen-3.5")


def load(hybrid: Hybrid, **settings: Any) -> LoadedModel:
    return load_model(structs.replace(hybrid.spec, **{"speculation": "auto"} | settings))


@pytest.fixture(scope="module")
def loaded(hybrid: Hybrid) -> LoadedModel:
    return load(hybrid)


@pytest.fixture
def head(loaded: LoadedModel) -> MtpHead:
    assert isinstance(loaded.draft_model, MtpHead)
    return loaded.draft_model


class Free(StepTimeModel):
    """As if passes took no time."""

    def curve(self, num_tokens: int) -> list[float]:
        return [0.0] * (num_tokens + 1)


MakeLoop = Callable[[LoadedModel], SteppedLoop]


@pytest.fixture
def make_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes_of_any_length_take_the_same_time: None
) -> MakeLoop:
    """Makes a loop in which only the head drafts, as if its passes cost nothing and the model's took the same time."""

    def made(loaded: LoadedModel) -> SteppedLoop:
        monkeypatch.setattr(loaded.draft_model, "times", Free())
        monkeypatch.setattr(TextDrafts, "propose", lambda *_: NO_DRAFT)
        return loop_of(loaded, tmp_path)

    return made


@pytest.fixture
def device(loaded: LoadedModel, make_loop: MakeLoop) -> Iterator[SteppedLoop]:
    yield make_loop(loaded)
    loaded.forget()


class Reference:
    """The graphs of the model and of its head, run over complete texts."""

    def __init__(self, path: Path) -> None:
        self._model, self._head = (
            onnxruntime.InferenceSession(str(path / name), providers=["CPUExecutionProvider"])
            for name in ("model.onnx", "mtp.onnx")
        )

    def draft(self, tokens: list[int], number: int) -> list[int]:
        """What the head drafts behind a sequence of which the model has read all tokens but the last."""
        states = _run(self._model, tokens[:-1])["hidden_states"]
        following, drafted = tokens[1:], list[int]()
        while True:
            found = _run(self._head, following, hidden_states=states)
            drafted.append(int(found["logits"][0, -1].argmax()))
            if len(drafted) == number:
                return drafted
            following = [*following, drafted[-1]]
            states = np.concatenate([states, found["hidden_states_out"][:, -1:]], axis=1)


def _run(session: Any, tokens: list[int], **inputs: Array) -> dict[str, Array]:
    """The outputs for a text that nothing comes before."""
    length = len(tokens)
    inputs |= {"input_ids": np.array([tokens], np.int64), "attention_mask": np.ones((1, length), np.int64)}
    inputs["position_ids"] = np.tile(np.arange(length), (3, 1, 1)).astype(np.int64)
    for value in session.get_inputs():
        if value.name not in inputs:
            shape = [1, *(size if isinstance(size, int) else 0 for size in value.shape[1:])]
            if "key" in value.name or "value" in value.name:
                shape[-1] = 32
            inputs[value.name] = np.zeros(shape, np.float32)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def noted_drafts(head: MtpHead, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """The tokens before each draft of the head, and those of the draft if there are any."""
    found: list[tuple[list[int], list[int]]] = []
    propose = head.propose

    def note(wanted: list[tuple[Sequence, int]], chunks: list[tuple[Sequence, int]]) -> list[list[int]]:
        drafts = propose(wanted, chunks)
        found.extend((list(sequence.tokens), made) for (sequence, _), made in zip(wanted, drafts, strict=True) if made)
        return drafts

    monkeypatch.setattr(head, "propose", note)
    return found


def answer(device: SteppedLoop, key: int, prompt: list[int], **fields: Any) -> list[int]:
    put_request(device, key, prompt, **fields)
    device.run(key)
    return device.tokens(key)


def test_drafts_are_those_of_the_heads_graph(
    hybrid: Hybrid, head: MtpHead, device: SteppedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts, reference = noted_drafts(head, monkeypatch), Reference(hybrid.path)
    for key, prompt in enumerate([text(1, 80), text(12, 81), text(50, 82), text(110, 83)]):
        answer(device, key, prompt, cache_prompt=False)  # alone: drafts for some of several rows would gain nothing
    assert len(drafts) > 3
    assert any(len(draft) > 1 for _, draft in drafts)
    assert all(draft == reference.draft(tokens, len(draft)) for tokens, draft in drafts)


def test_a_head_in_16_bits_drafts_as_well(
    hybrid: Hybrid, make_loop: MakeLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halved = load(hybrid, model_dir=str(write_halved(hybrid.path, tmp_path / "halved", "mtp")))
    assert isinstance(halved.draft_model, MtpHead)
    drafts, reference = noted_drafts(halved.draft_model, monkeypatch), Reference(hybrid.path)
    answer(make_loop(halved), 1, text(50, 82), cache_prompt=False)
    assert len(drafts) > 3
    # Its weights are rounded, so single tokens may differ from those of the graph in 32 bits.
    assert sum(draft[:1] == reference.draft(tokens, 1) for tokens, draft in drafts) > 0.7 * len(drafts)


def test_drafts_after_a_profile_are_those_of_the_heads_graph(
    hybrid: Hybrid, head: MtpHead, device: SteppedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts, reference = noted_drafts(head, monkeypatch), Reference(hybrid.path)
    prompt = text(50, 82)
    put_request(device, 1, prompt, cache_prompt=False)
    lengths = []
    for number, value in enumerate(("p", "0")):
        lengths.append(len(prompt) + len(device.tokens(1)))
        device.put(SetRuntimeOption(number, "enable_profiling", value))
        device.step_until(lambda: len(device.tokens(1)) >= 4)
    device.run(1)
    assert device.tokens(1) == hybrid.answer(prompt)
    assert device.end(1).num_profiled == lengths[1] - lengths[0]
    assert min(len(tokens) for tokens, _ in drafts) >= lengths[1]
    assert all(draft == reference.draft(tokens, len(draft)) for tokens, draft in drafts)


def test_right_drafts_are_accepted(
    hybrid: Hybrid, head: MtpHead, device: SteppedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, known = text(30, 85), 40
    right = [*prompt, *hybrid.answer(prompt)]
    monkeypatch.setattr(
        head, "best_tokens", lambda copy, _: [right[len(copy.tokens) + 1] if len(copy.tokens) < known else 5]
    )
    assert answer(device, 0, prompt) == right[len(prompt) :]
    assert device.end(0).num_accepted >= STEPS // 2


def test_a_cached_prefix_is_not_needed_for_drafts(hybrid: Hybrid, device: SteppedLoop) -> None:
    prompt = text(100, 86)
    for key in (0, 1):
        assert answer(device, key, prompt) == hybrid.answer(prompt)
        assert device.end(key).num_drafted
    assert device.end(1).num_cached > 80


def test_seeded_answers_have_drafts_where_these_change_no_bit(
    loaded: LoadedModel, device: SteppedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for key, why in enumerate(("", "it rounds")):
        monkeypatch.setattr(loaded.main, "abilities", replace(loaded.main.abilities, why_not_exact=why))
        found.append(answer(device, key, text(20, 88), sampling=Sampling(seed=1)))
        assert bool(device.end(key).num_drafted) == (not why)
    assert found[0] == found[1]


def test_ended_sequences_leave_nothing(head: MtpHead, device: SteppedLoop) -> None:
    for key in range(2 * SLOTS):
        answer(device, key, text(10, key))
    assert not head._states
    assert not head._copies


def test_states_are_kept_only_where_drafts_may_follow(
    loaded: LoadedModel, head: MtpHead, device: SteppedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded.main, "abilities", replace(loaded.main.abilities, why_not_exact="it rounds"))
    put_request(device, 0, text(20, 91), sampling=Sampling(seed=1))
    put_request(device, 1, text(20, 92))
    device.step_until(lambda: all(device.tokens(key) for key in range(2)))
    assert len(head._states) == 1
    device.run(0, 1)


def test_kept_states_do_not_keep_those_of_other_rows(head: MtpHead, device: SteppedLoop) -> None:
    put_request(device, 0, text(5, 93))
    device.step_until(lambda: bool(device.tokens(0)))
    put_request(device, 1, text(90, 94))
    device.step_until(lambda: bool(device.tokens(1)))
    assert len(head._states) == 2
    assert all(part.base is None for states in head._states.values() for part in states.parts)
    device.run(0, 1)


def test_failure_behind_a_pass_costs_no_other_answer(
    hybrid: Hybrid, loaded: LoadedModel, device: SteppedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = text(20, 95)
    put_request(device, 0, prompt)
    device.step_until(lambda: bool(device.tokens(0)))
    with monkeypatch.context() as patched:
        patched.setattr(loaded.main, "take_hidden", Mock(side_effect=MemoryError))
        device.run(0)
    assert device.failure(0).message
    following = [*prompt, *device.tokens(0), 7, 8]
    assert answer(device, 1, following) == hybrid.answer(following)


def test_head_has_the_type_of_the_models_keys(hybrid: Hybrid) -> None:
    loaded = load(hybrid, kv_cache_type="fp16")
    assert loaded.draft_model is not None
    memories = [runner.abilities.memory for runner in (loaded.main, loaded.draft_model.runner)]
    assert memories[0].page_tokens == memories[1].page_tokens


def test_memory_for_the_model_alone_has_no_head(hybrid: Hybrid, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(hybrid, kv_cache_type="fp32", kv_cache_bytes=100_000)
    assert loaded.batch is not None
    assert loaded.draft_model is None
    assert "the model's head for multi-token prediction is not used" in caplog.text


@pytest.mark.parametrize("name", ["mtp.onnx.data", "mtp.onnx", "genai_config.json"])
def test_head_that_cannot_be_used_costs_drafts_but_no_memory(hybrid: Hybrid, tmp_path: Path, name: str) -> None:
    """Its weights are empty, its inputs and outputs unknown, or its graph is none."""
    model_dir = Path(shutil.copytree(hybrid.path, tmp_path / "model"))
    if name == "mtp.onnx.data":
        (model_dir / name).write_bytes(b"")
    else:
        with edited_config(model_dir) as config:
            config["model"]["mtp"] = {"filename": name}
    without, broken = (
        load(hybrid, model_dir=str(model_dir), speculation=how, kv_bytes=2**24) for how in ("off", "auto")
    )
    assert broken.batch is not None
    assert without.draft_model is broken.draft_model is None
    assert broken.main.abilities.memory.num_pages == without.main.abilities.memory.num_pages


def test_memory_for_keys_is_divided_by_need(loaded: LoadedModel, head: MtpHead) -> None:
    assert head.kv_share == pytest.approx(1 / (1 + NUM_LAYERS_WITH_KEYS))
    assert loaded.main.model.max_length == head.runner.model.max_length


def rows(number: int, first: int = 0) -> Array:
    return np.arange(first, first + number)[:, np.newaxis]


def test_states_are_kept_until_they_are_read() -> None:
    states = _States(3, 3, 3)
    for first, number in ((3, 4), (7, 1), (8, 5)):
        states.append(rows(number, first))
    states.cut(10)
    assert states.of(6, 3).ravel().tolist() == [6, 7, 8]
    states.append(rows(2, 10))
    states.forget_before(11)
    assert states.of(11, 9).ravel().tolist() == [11]


def test_long_prompts_are_read_from_the_states_that_are_kept() -> None:
    states = _States(0, 0, 0)
    for first in range(0, 4 * MAX_KEPT, 16):
        states.append(rows(16, first))
        states.forget_before(states.end - MAX_KEPT)
    assert states.start == 3 * MAX_KEPT
    assert states.end == 4 * MAX_KEPT
