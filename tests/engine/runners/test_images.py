"""Prompts with images, in the batch and on a Generator: each answer must be the library's own.

The models are tests/built_models/*-images: decoders of the real builder, with small vision graphs.
"""

from collections import abc
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime_genai as og
import pytest
from _models.adapter_graph import random_weights, save_adapter, write_adapted
from numpy.typing import NDArray

from genai_server.engine.encoded_inputs import EncodedImage, PromptImages
from genai_server.engine.model.encoders import ImageEncoder
from genai_server.engine.model.graph_reader import read_decoder_graph, read_vision_files
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.base import run_pass
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.sequence_limits import BatchLimits
from genai_server.engine.scheduling.scheduler_output import UNSHARED, ScheduledChunk
from genai_server.engine.sequence import Sequence
from genai_server.errors import AdapterLoadFailed
from genai_server.messages.generation_request import Adapter, GenerationRequest, Image
from tests.engine.model_runners import answers, generator_answer, logits_of_answers, profiled_answer
from tests.running_server import ROOT

STEPS, LENGTH = 12, 250
# Around an image; the library finds the images by the first one.
START, END = 3, 4
BUILT = ROOT / "tests" / "built_models"
Grid = tuple[int, int, int]


@dataclass
class Case:
    """A prompt and the tensors of its images, as the library's processor makes them."""

    prompt: list[int] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    tensors: list[dict[str, NDArray[Any]]] = field(default_factory=list)


class Vision:
    """A model that takes images, its cases, and what the library answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        files = read_vision_files(path)
        assert files is not None
        self.token, self.merge_size = files.image_token, files.merge_size
        self.encoder = ImageEncoder(files, threads=1)
        self._random = np.random.default_rng(1)
        pixels = next(given for given in onnx.load(str(files.vision)).graph.input if given.name == "pixel_values")
        self._width = pixels.type.tensor_type.shape.dim[1].dim_value
        words = self.words
        self.cases = [
            self.case([*words(5), START], (1, 3, 2), [END, *words(4)]),
            self.case(words(9)),
            self.case([*words(3), START], (1, 2, 2), [END, *words(2), START], (1, 4, 5), [END, *words(3)]),
            self.case([START], (1, 6, 6), [END, *words(1)]),
        ]
        self._model = og.Model(str(path))
        self.answers = [self._by_library(case) for case in self.cases]
        self.generator = OgGeneratorRunner(path, "cpu", threads=1)
        graph = read_decoder_graph(path)
        # Memory for the checkpoints of a hybrid.
        limits = BatchLimits(12, LENGTH, replace(UNSHARED, num_pages=40, checkpoint_pages=1))
        self.batch = BatchedRunner(graph, open_session(graph, 1), self.generator.model, limits)

    def words(self, number: int) -> list[int]:
        return [int(token) for token in self._random.integers(20, 250, number)]

    def case(self, *parts: list[int] | Grid) -> Case:
        found = Case()
        for part in parts:
            if isinstance(part, list):
                found.prompt += part
                continue
            frames, rows, columns = part
            num_features, size = frames * rows * columns, self.merge_size
            pixels = self._random.normal(size=(num_features * size**2, self._width)).astype(np.float32)
            grid = np.array([[frames, rows * size, columns * size]], np.int64)
            found.tensors.append({"pixel_values": pixels, "image_grid_thw": grid})
            found.images.append(Image("digest", "", len(found.prompt), num_features, part))
            found.prompt += [self.token] * num_features
        return found

    def _by_library(self, case: Case) -> list[int]:
        parameters = og.GeneratorParams(self._model)
        parameters.set_search_options(max_length=LENGTH, do_sample=False, batch_size=1)
        generator = og.Generator(self._model, parameters)
        inputs = og.NamedTensors()
        inputs["input_ids"] = np.array([case.prompt], np.int32)
        if case.tensors:
            for name in ("pixel_values", "image_grid_thw"):
                inputs[name] = np.concatenate([tensors[name] for tensors in case.tensors])
            inputs["num_image_tokens"] = np.array([case.prompt.count(self.token)], np.int64)
            generator.set_inputs(inputs)
        else:
            generator.append_tokens(np.array(case.prompt, np.int32))
        answer: list[int] = []
        while len(answer) < STEPS:
            logits = np.array(generator.get_logits()).reshape(-1, 300)[-1].copy()
            logits[self.token] = -np.inf  # the library fails once it has chosen one
            answer.append(int(logits.argmax()))
            generator.append_tokens(np.array(answer[-1:], np.int32))
        return answer

    def sequences(self, serial: int = 0, more: abc.Sequence[int] = (), **fields: Any) -> list[Sequence]:
        """A sequence for each case, with `more` tokens behind its prompt. Images have ids from `serial` on."""
        found = []
        for number, case in enumerate(self.cases):
            prompt = [*case.prompt, *more]
            request = GenerationRequest(str(number), prompt, STEPS, LENGTH, images=case.images, **fields)
            sequence = Sequence(number, (0, 0), request, lambda: 0.0, reuses_past=True)
            if case.images:
                encoded = [
                    EncodedImage(serial + 10 * number + place, self.encoder.encode(tensors))
                    for place, tensors in enumerate(case.tensors)
                ]
                sequence.take(PromptImages(prompt, case.images, encoded, self.token))
            found.append(sequence)
        return found


@pytest.fixture(scope="module", params=["qwen-3-vl-images", "qwen-2.5-vl-images", "qwen-3.5-images"])
def vision(request: pytest.FixtureRequest) -> Vision:
    return Vision(BUILT / request.param)


@pytest.mark.parametrize("chunk", [1000, 3])
def test_a_batch_answers_as_the_library_does(vision: Vision, chunk: int) -> None:
    vision.batch.forget()
    assert answers(vision.batch, vision.sequences(), STEPS, chunk) == vision.answers


def test_a_generator_answers_as_the_library_does(vision: Vision) -> None:
    for sequence, expected in zip(vision.sequences(), vision.answers, strict=True):
        if sequence.images is not None:
            assert vision.generator.fit_chunk(sequence, 4) == len(sequence.prompt)
        assert generator_answer(vision.generator, sequence, STEPS) == expected


def test_a_cached_prefix_is_used_for_the_same_image_only(vision: Vision) -> None:
    vision.batch.forget()
    expected = answers(vision.batch, vision.sequences(more=[20, 21, 22]), STEPS, 1000)
    vision.batch.forget()
    answers(vision.batch, vision.sequences(), STEPS, 1000)
    for serial in (0, 500):
        for sequence, case, answer in zip(
            vision.sequences(serial, more=[20, 21, 22]), vision.cases, expected, strict=True
        ):
            assert answers(vision.batch, [sequence], STEPS, 1000) == [answer]
            if case.images:
                assert (sequence.num_cached > case.images[-1].start) == (serial == 0)


def test_image_tokens_are_never_chosen(vision: Vision) -> None:
    for runner in (vision.batch, vision.generator):
        sequence = vision.sequences()[0]
        runner.open(sequence)
        (scores,) = run_pass(runner, [ScheduledChunk.next(sequence, sequence.num_unread)])
        assert np.isneginf(scores.last[vision.token])
        assert np.isfinite(np.delete(scores.last, vision.token)).all()
        runner.close(sequence.id)


def test_answers_are_bitwise_equal_alone_and_in_company_in_any_chunks(vision: Vision) -> None:
    assert not vision.batch.abilities.why_not_exact
    vision.batch.forget()
    together = logits_of_answers(vision.batch, vision.sequences(), STEPS, 1000)
    for chunk in (7, 1):
        vision.batch.forget()
        found = logits_of_answers(vision.batch, vision.sequences(), STEPS, chunk)
        assert all(np.array_equal(one, other) for one, other in zip(found, together, strict=True))
    for number, expected in enumerate(together):
        vision.batch.forget()
        (alone,) = logits_of_answers(vision.batch, [vision.sequences()[number]], STEPS, 1000)
        assert np.array_equal(alone, expected)


@pytest.mark.parametrize("first", [0, 4])
def test_profiled_answers_are_the_usual_ones(vision: Vision, tmp_path: Path, first: int) -> None:
    vision.batch.forget()
    for sequence, expected in zip(vision.sequences(), vision.answers, strict=True):
        assert profiled_answer(vision.batch, sequence, STEPS, tmp_path, first=first) == expected


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
        together = logits_of_answers(vision.batch, sequences(), STEPS, chunk)
        assert all(np.array_equal(one, other) for one, other in zip(together, bits, strict=True))
    found = [profiled_answer(vision.batch, sequence, STEPS, tmp_path) for sequence in sequences()]
    assert found == alone


def test_generator_of_a_model_with_images_takes_no_adapters(adapted_vision: tuple[Vision, list[Path]]) -> None:
    vision, files = adapted_vision
    pair = RunnerPair(LoadedModel(vision.generator))
    with pytest.raises(AdapterLoadFailed, match="has no adapters for models that take images"):
        pair.loaded.adapters.load(Adapter("any", str(files[0]), "1"))
