"""Prompts with images or sounds, in the batch and on a Generator: each answer must be the library's own.

The models are tests/built_models/*-images and lfm2-audio: decoders of the real builder, with small vision and speech
graphs.
"""

from pathlib import Path

import numpy as np
import pytest
from _models.adapter_graph import random_weights, save_adapter, write_adapted

from genai_server.engine.runners.base import run_pass
from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.sequence import Sequence
from genai_server.errors import AdapterLoadFailed
from genai_server.messages.generation_request import Adapter
from tests.engine.hybrids import BUILT
from tests.engine.model_runners import (
    answers,
    generator_answer,
    logits_in_any_company,
    logits_of_answers,
    profiled_answer,
)
from tests.engine.runners.media_models import SOUNDS, STEPS, Hearing, MediaModel, Vision


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Hearing:
    return Hearing(tmp_path_factory.mktemp("processor"))


@pytest.fixture(scope="module", params=["qwen-3-vl-images", "qwen-2.5-vl-images", "qwen-3.5-images", "lfm2-audio"])
def model(request: pytest.FixtureRequest) -> MediaModel:
    if request.param == "lfm2-audio":
        found: MediaModel = request.getfixturevalue("hearing")
        return found
    return Vision(BUILT / request.param)


def test_answers_depend_on_the_sound(hearing: Hearing) -> None:
    # A token for each 80 ms.
    assert [len(sound.expansion) for sound in hearing.sounds] == [-(-len(sound) // 1280) for sound in SOUNDS]
    assert len({tuple(answer) for answer in hearing.answers}) == len(hearing.answers)
    first, second = hearing.features[:2]
    assert not np.allclose(first[: len(second)], second[: len(first)], atol=0.1)


@pytest.mark.parametrize("chunk", [1000, 3])
def test_a_batch_answers_as_the_library_does(model: MediaModel, chunk: int) -> None:
    model.batch.forget()
    assert answers(model.batch, model.sequences(), STEPS, chunk) == model.answers


def test_a_generator_answers_as_the_library_does(model: MediaModel) -> None:
    for sequence, expected in zip(model.sequences(), model.answers, strict=True):
        if sequence.images is not None:
            assert model.generator.fit_chunk(sequence, 4) == len(sequence.prompt)
        assert generator_answer(model.generator, sequence, STEPS) == expected


def test_a_cached_prefix_is_used_for_the_same_image_only(model: MediaModel) -> None:
    more = [20, 21, 22]
    model.batch.forget()
    expected = answers(model.batch, model.sequences(more=more), STEPS, 1000)
    model.batch.forget()
    answers(model.batch, model.sequences(), STEPS, 1000)
    for serial in (0, 500):
        for sequence, case, answer in zip(model.sequences(serial, more), model.cases, expected, strict=True):
            assert answers(model.batch, [sequence], STEPS, 1000) == [answer]
            if case.images:
                assert (sequence.num_cached > case.images[-1].start) == (serial == 0)


def test_image_tokens_are_never_chosen(model: MediaModel) -> None:
    for runner in (model.batch, model.generator):
        sequence = model.sequences()[0]
        runner.open(sequence)
        (scores,) = run_pass(runner, [ScheduledChunk.next(sequence, sequence.num_unread)])
        assert np.isneginf(scores.last[model.token])
        assert np.isfinite(np.delete(scores.last, model.token)).all()
        runner.close(sequence.id)


def test_answers_are_bitwise_equal_alone_and_in_company_in_any_chunks(model: MediaModel) -> None:
    assert not model.batch.abilities.why_not_exact
    logits_in_any_company(model.batch, model.sequences, STEPS)


@pytest.mark.parametrize("first", [0, 4])
def test_profiled_answers_are_the_usual_ones(model: MediaModel, tmp_path: Path, first: int) -> None:
    model.batch.forget()
    for sequence, expected in zip(model.sequences(), model.answers, strict=True):
        assert profiled_answer(model.batch, sequence, STEPS, tmp_path, first=first) == expected


@pytest.fixture(scope="module")
def adapted_vision(tmp_path_factory: pytest.TempPathFactory) -> tuple[Vision, list[Path]]:
    """A model that takes images, and two adapters of it."""
    folder = tmp_path_factory.mktemp("adapted")
    shapes = write_adapted(BUILT / "qwen-3.5-images", folder / "model")
    files = [folder / f"{number}.onnx_adapter" for number in range(2)]
    for number, file in enumerate(files):
        save_adapter(file, random_weights(shapes, 2 + number, 3.0, number))
    return Vision(folder / "model"), files


def test_rows_with_images_and_adapters_are_as_alone(adapted_vision: tuple[Vision, list[Path]], tmp_path: Path) -> None:
    vision, files = adapted_vision
    pair = RunnerPair(LoadedModel(vision.generator, vision.batch))
    one, other = (pair.loaded.adapters.find(Adapter(file.stem, str(file), file.stem)) for file in files)

    def sequences() -> list[Sequence]:
        found = vision.sequences()
        for sequence, adapter in zip(found, (one, None, other, one), strict=True):
            sequence.adapter = adapter
        return found

    bits = [logits_of_answers(vision.batch, [sequence], STEPS, 64)[0] for sequence in sequences()]
    alone = [logits.argmax(axis=-1).tolist() for logits in bits]
    assert [own == plain for own, plain in zip(alone, vision.answers, strict=True)] == [False, True, False, False]
    for chunk in (64, 8):
        vision.batch.forget()
        assert all(map(np.array_equal, logits_of_answers(vision.batch, sequences(), STEPS, chunk), bits))
    assert [profiled_answer(vision.batch, sequence, STEPS, tmp_path) for sequence in sequences()] == alone


def test_generator_of_a_model_with_images_takes_no_adapters(adapted_vision: tuple[Vision, list[Path]]) -> None:
    vision, files = adapted_vision
    pair = RunnerPair(LoadedModel(vision.generator))
    with pytest.raises(AdapterLoadFailed, match="has no adapters for models that take images"):
        pair.loaded.adapters.load(Adapter("any", str(files[0]), "1"))
