"""Prompts with sounds, in the batch and on a Generator: each answer must be the library's own.

The model is tests/built_models/lfm2-audio: a decoder of the real builder, with a small speech graph.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
import pytest

from genai_server.engine.encoded_inputs import EncodedImage, PromptImages
from genai_server.engine.model.encoders import ImageEncoder
from genai_server.engine.model.graph_reader import read_decoder_graph, read_vision_files
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.sequence_limits import BatchLimits
from genai_server.engine.scheduling.scheduler_output import UNSHARED
from genai_server.engine.sequence import Sequence
from genai_server.media.images.audio_processor import AudioProcessor
from genai_server.media.images.processor import ProcessedImage
from genai_server.messages.generation_request import GenerationRequest, Image
from genai_server.model_files.speech_and_vision import Medium, read_vision_model
from tests.engine.model_runners import answers, generator_answer, logits_of_answers
from tests.media.audio.sounds import encoded, sentence, tone
from tests.running_server import ROOT

PATH = ROOT / "tests" / "built_models" / "lfm2-audio"
STEPS, LENGTH = 12, 250
SOUNDS = (sentence(), tone(1.0), sentence()[16_000:])


class Hearing:
    """The model, texts with sounds between them, and what the library answers."""

    def __init__(self, folder: Path) -> None:
        model = read_vision_model(PATH)
        assert model is not None
        assert model.medium is Medium.AUDIO
        self.token = model.image_token_id
        processor = AudioProcessor(model, PATH, folder)
        self.sounds = [processor.process(encoded(sound), 60) for sound in SOUNDS]
        files = read_vision_files(PATH)
        assert files is not None
        encoder = ImageEncoder(files, threads=1)
        self.features = [encoder.encode(sound.tensors) for sound in self.sounds]
        self._random = np.random.default_rng(2)
        # Numbers of sounds between words.
        self.cases = [(0,), (), (1,), (2, 0)]
        self.prompts = [self._prompt(case) for case in self.cases]
        self._model = og.Model(str(PATH))
        self.answers = [self._by_library(*each) for each in zip(self.prompts, self.cases, strict=True)]
        self.generator = OgGeneratorRunner(PATH, "cpu", threads=1)
        graph = read_decoder_graph(PATH)
        limits = BatchLimits(12, LENGTH, replace(UNSHARED, num_pages=40, checkpoint_pages=1))
        self.batch = BatchedRunner(graph, open_session(graph, 1), self.generator.model, limits)

    def _words(self, number: int) -> list[int]:
        return [int(token) for token in self._random.integers(20, 250, number)]

    def _prompt(self, case: tuple[int, ...]) -> list[int]:
        prompt = self._words(5)
        for sound in case:
            prompt += [*self.sounds[sound].expansion, *self._words(4)]
        return prompt

    def _by_library(self, prompt: list[int], case: tuple[int, ...]) -> list[int]:
        parameters = og.GeneratorParams(self._model)
        parameters.set_search_options(max_length=LENGTH, do_sample=False, batch_size=1)
        generator = og.Generator(self._model, parameters)
        given: list[ProcessedImage] = [self.sounds[sound] for sound in case]
        inputs = og.NamedTensors()
        inputs["input_ids"] = np.array([prompt], np.int32)
        if given:
            longest = max(each.tensors["audio_embeds"].shape[1] for each in given)
            mels = [each.tensors["audio_embeds"] for each in given]
            inputs["audio_embeds"] = np.concatenate(
                [np.pad(m, ((0, 0), (0, longest - m.shape[1]), (0, 0))) for m in mels]
            )
            for name in ("audio_lengths", "audio_sizes"):
                inputs[name] = np.concatenate([each.tensors[name] for each in given]).astype(np.int64)
        generator.set_inputs(inputs)
        answer: list[int] = []
        while len(answer) < STEPS:
            logits = np.array(generator.get_logits()).reshape(-1, 300)[-1].copy()
            logits[self.token] = -np.inf
            answer.append(int(logits.argmax()))
            generator.append_tokens(np.array(answer[-1:], np.int32))
        return answer

    def sequences(self, **fields: Any) -> list[Sequence]:
        found = []
        for number, (prompt, case) in enumerate(zip(self.prompts, self.cases, strict=True)):
            starts = [at for at, token in enumerate(prompt) if token == self.token and prompt[at - 1] != self.token]
            images = [
                Image(f"digest {sound}", "", start, len(self.sounds[sound].expansion))
                for sound, start in zip(case, starts, strict=True)
            ]
            request = GenerationRequest(str(number), prompt, STEPS, LENGTH, images=images, **fields)
            sequence = Sequence(number, (0, 0), request, lambda: 0.0, reuses_past=True)
            if case:
                own = [EncodedImage(sound, self.features[sound]) for sound in case]
                sequence.take(PromptImages(prompt, images, own, self.token))
            found.append(sequence)
        return found


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Hearing:
    return Hearing(tmp_path_factory.mktemp("processor"))


def test_answers_depend_on_the_sound(hearing: Hearing) -> None:
    # A token for each 80 ms.
    assert [len(sound.expansion) for sound in hearing.sounds] == [-(-len(sound) // 1280) for sound in SOUNDS]
    assert len({tuple(answer) for answer in hearing.answers}) == len(hearing.answers)
    first, second = hearing.features[0], hearing.features[1]
    assert not np.allclose(first[: len(second)], second[: len(first)], atol=0.1)


@pytest.mark.parametrize("chunk", [1000, 7])
def test_a_batch_answers_as_the_library_does(hearing: Hearing, chunk: int) -> None:
    hearing.batch.forget()
    assert answers(hearing.batch, hearing.sequences(), STEPS, chunk) == hearing.answers


def test_answers_are_bitwise_equal_alone_and_in_company_in_any_chunks(hearing: Hearing) -> None:
    assert not hearing.batch.abilities.why_not_exact
    hearing.batch.forget()
    together = logits_of_answers(hearing.batch, hearing.sequences(), STEPS, 1000)
    for chunk in (7, 1):
        hearing.batch.forget()
        found = logits_of_answers(hearing.batch, hearing.sequences(), STEPS, chunk)
        assert all(np.array_equal(one, other) for one, other in zip(found, together, strict=True))
    for number, expected in enumerate(together):
        hearing.batch.forget()
        (alone,) = logits_of_answers(hearing.batch, [hearing.sequences()[number]], STEPS, 1000)
        assert np.array_equal(alone, expected)


def test_a_generator_answers_as_the_library_does(hearing: Hearing) -> None:
    for sequence, expected in zip(hearing.sequences(), hearing.answers, strict=True):
        assert generator_answer(hearing.generator, sequence, STEPS) == expected
