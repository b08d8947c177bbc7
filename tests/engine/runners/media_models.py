"""Models whose prompts have images or sounds between the words, with prompts and what the library answers."""

import itertools
from collections import abc
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og
from numpy.typing import NDArray

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
from genai_server.messages.generation_request import GenerationRequest, Image
from genai_server.model_files.speech_and_vision import Medium, read_vision_model
from tests.engine.hybrids import BUILT
from tests.engine.model_runners import Arrays, answer_with_inputs
from tests.media.audio.sounds import encoded, sentence, tone

STEPS, LENGTH = 12, 250
# Around an image; the library finds the images by the first one.
START, END = 3, 4
SOUNDS = (sentence(), tone(1.0), sentence()[16_000:])
Grid = tuple[int, int, int]


@dataclass
class Case:
    """A prompt, its images or sounds, their features, and the tensors of all of them for the library."""

    prompt: list[int] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    features: list[EncodedImage] = field(default_factory=list)
    tensors: Arrays = field(default_factory=dict)


class MediaModel:
    """A model, its cases, and what the library answers. A subclass makes the cases."""

    def __init__(self, path: Path, seed: int = 1) -> None:
        self.path = path
        files = read_vision_files(path)
        assert files is not None
        self.files, self.token = files, files.image_token
        self.encoder = ImageEncoder(files, threads=1)
        self.random = np.random.default_rng(seed)
        self.cases = self.make_cases()
        model, how = og.Model(str(path)), {"steps": STEPS, "max_length": LENGTH, "excluded": self.token}
        self.answers = [answer_with_inputs(model, case.prompt, case.tensors, **how) for case in self.cases]
        self.generator = OgGeneratorRunner(path, "cpu", threads=1)
        graph = read_decoder_graph(path)
        # Memory for the checkpoints of a hybrid.
        limits = BatchLimits(12, LENGTH, replace(UNSHARED, num_pages=40, checkpoint_pages=1))
        self.batch = BatchedRunner(graph, open_session(graph, 1), self.generator.model, limits)

    def make_cases(self) -> list[Case]:
        raise NotImplementedError

    def words(self, number: int) -> list[int]:
        found: list[int] = self.random.integers(20, 250, number).tolist()
        return found

    def sequences(self, serial: int = 0, more: abc.Sequence[int] = ()) -> list[Sequence]:
        """A sequence for each case, with `more` tokens behind its prompt. `serial` is added to the ids of features."""
        found = []
        for number, case in enumerate(self.cases):
            prompt = [*case.prompt, *more]
            request = GenerationRequest(str(number), prompt, STEPS, LENGTH, images=case.images)
            sequence = Sequence(number, (0, 0), request, lambda: 0.0, reuses_past=True)
            if case.images:
                own = [EncodedImage(serial + each.serial, each.features) for each in case.features]
                sequence.take(PromptImages(prompt, case.images, own, self.token))
            found.append(sequence)
        return found


class Vision(MediaModel):
    """A model that takes images, with tensors as the library's processor makes them."""

    def make_cases(self) -> list[Case]:
        pixels = next(one for one in onnx.load(str(self.files.vision)).graph.input if one.name == "pixel_values")
        self._width, self._serials = pixels.type.tensor_type.shape.dim[1].dim_value, itertools.count()
        words = self.words
        return [
            self._case([*words(5), START], (1, 3, 2), [END, *words(4)]),
            self._case(words(9)),
            self._case([*words(3), START], (1, 2, 2), [END, *words(2), START], (1, 4, 5), [END, *words(3)]),
            self._case([START], (1, 6, 6), [END, *words(1)]),
        ]

    def _case(self, *parts: list[int] | Grid) -> Case:
        found, given = Case(), list[Arrays]()
        for part in parts:
            if isinstance(part, list):
                found.prompt += part
                continue
            frames, rows, columns = part
            num_features, size = frames * rows * columns, self.files.merge_size
            pixels = self.random.normal(size=(num_features * size**2, self._width)).astype(np.float32)
            grid = np.array([[frames, rows * size, columns * size]], np.int64)
            given.append({"pixel_values": pixels, "image_grid_thw": grid})
            found.images.append(Image("digest", "", len(found.prompt), num_features, part))
            found.features.append(EncodedImage(next(self._serials), self.encoder.encode(given[-1])))
            found.prompt += [self.token] * num_features
        if given:
            found.tensors = {name: np.concatenate([each[name] for each in given]) for name in given[0]}
            found.tensors["num_image_tokens"] = np.array([found.prompt.count(self.token)], np.int64)
        return found


class Hearing(MediaModel):
    """A model that takes sounds."""

    def __init__(self, folder: Path) -> None:
        path = BUILT / "lfm2-audio"
        model = read_vision_model(path)
        assert model is not None
        assert model.medium is Medium.AUDIO
        processor = AudioProcessor(model, path, folder)
        self.sounds = [processor.process(encoded(sound), 60) for sound in SOUNDS]
        super().__init__(path, seed=2)

    def make_cases(self) -> list[Case]:
        self.features = [self.encoder.encode(sound.tensors) for sound in self.sounds]
        return [self._case(sounds) for sounds in ((0,), (), (1,), (2, 0))]

    def _case(self, sounds: tuple[int, ...]) -> Case:
        found = Case(self.words(5))
        for sound in sounds:
            expansion = self.sounds[sound].expansion
            found.images.append(Image(f"digest {sound}", "", len(found.prompt), len(expansion)))
            found.features.append(EncodedImage(sound, self.features[sound]))
            found.prompt += [*expansion, *self.words(4)]
        if sounds:
            given: list[dict[str, NDArray[np.float32]]] = [self.sounds[sound].tensors for sound in sounds]
            longest = max(each["audio_embeds"].shape[1] for each in given)
            found.tensors = {
                name: np.concatenate([each[name] for each in given]).astype(np.int64)
                for name in ("audio_lengths", "audio_sizes")
            }
            found.tensors["audio_embeds"] = np.concatenate(
                [np.pad(mels := each["audio_embeds"], ((0, 0), (0, longest - mels.shape[1]), (0, 0))) for each in given]
            )
        return found
