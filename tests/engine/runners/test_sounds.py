"""Transcripts, in the batch and on a Generator: each must be the library's own.

The model is tests/built_models/whisper: the graphs of the real builder with random weights.
"""

import json
from collections import abc
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import pytest
from numpy.typing import NDArray

from genai_server.engine.encoded_inputs import EncodedAudio
from genai_server.engine.model.encoders import AudioEncoder
from genai_server.engine.model.graph_reader import read_cross_decoder, read_encoder_files
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.base import run_pass
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.sequence_limits import BatchLimits
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import AudioInput, GenerationRequest
from genai_server.model_files.speech_and_vision import FEATURES, read_speech_model
from tests.engine.model_runners import (
    answer_with_inputs,
    answers,
    generator_answer,
    logits_in_any_company,
    logits_of_answers,
    profiled_answer,
)
from tests.running_server import ROOT

PATH = ROOT / "tests" / "built_models" / "whisper"
STEPS, LENGTH = 12, 100


class Speech:
    """The model, prompts with their sounds, and what the library answers."""

    def __init__(self) -> None:
        model = read_speech_model(PATH)
        assert model is not None
        self.generator = OgGeneratorRunner(PATH, "cpu", threads=1)
        graph = read_cross_decoder(PATH)
        self.batch = BatchedRunner(graph, open_session(graph, 1), self.generator.model, BatchLimits(6, LENGTH))
        self.encoder = AudioEncoder(read_encoder_files(PATH), threads=1)
        random = np.random.default_rng(1)
        start = [model.start_of_transcript, model.languages["en"], model.transcribe]
        # Texts before the window make prompts of several lengths.
        self.prompts = [
            [model.start_of_previous, *random.integers(20, 250, length).tolist(), *start] if length else start
            for length in (0, 5, 0, 40)
        ]
        self.sounds = [self._sound(random) for _ in self.prompts]
        library = og.Model(str(PATH))
        self.answers = [
            answer_with_inputs(library, prompt, {FEATURES: sound.features}, steps=STEPS, max_length=LENGTH)
            for prompt, sound in zip(self.prompts, self.sounds, strict=True)
        ]

    def _sound(self, random: np.random.Generator) -> EncodedAudio:
        mels, frames = self.encoder.shape
        # Over all frames, noise alone would be the same for every sound.
        features = 4 * random.standard_normal((1, mels, 1)) + random.standard_normal((1, mels, frames))
        return self.encoder.encode({FEATURES: features.astype(np.float32)})

    def sequences(self) -> list[Sequence]:
        """A sequence for each prompt."""
        found = []
        for number, (prompt, sound) in enumerate(zip(self.prompts, self.sounds, strict=True)):
            audio = AudioInput(f"digest {number}", "no file")
            request = GenerationRequest(str(number), prompt, STEPS, LENGTH, sound=audio)
            found.append(Sequence(number, (0, 0), request, lambda: 0.0, reuses_past=True))
            found[-1].take(sound)
        return found


@pytest.fixture(scope="module")
def speech() -> Speech:
    return Speech()


def test_answers_depend_on_the_sound(speech: Speech) -> None:
    assert speech.prompts[0] == speech.prompts[2]
    assert speech.answers[0] != speech.answers[2]


@pytest.mark.parametrize("chunk", [1000, 7])
def test_a_batch_answers_as_the_library_does(speech: Speech, chunk: int) -> None:
    speech.batch.forget()
    assert answers(speech.batch, speech.sequences(), STEPS, chunk) == speech.answers


def test_a_generator_answers_as_the_library_does(speech: Speech) -> None:
    for sequence, expected in zip(speech.sequences(), speech.answers, strict=True):
        assert speech.generator.fit_chunk(sequence, 2) == len(sequence.prompt)
        assert generator_answer(speech.generator, sequence, STEPS) == expected


def test_a_cached_prefix_is_used_for_the_same_sound_only(speech: Speech) -> None:
    speech.batch.forget()
    first, _, other, _ = speech.sequences()
    answers(speech.batch, [first], STEPS, 1000)
    again = speech.sequences()[0]
    assert answers(speech.batch, [other], STEPS, 1000) == [speech.answers[2]]
    assert answers(speech.batch, [again], STEPS, 1000) == [speech.answers[0]]
    assert other.num_cached == 0
    assert again.num_cached > 0


def test_answers_are_bitwise_equal_alone_and_in_company_in_any_chunks_on_any_threads(speech: Speech) -> None:
    assert not speech.batch.abilities.why_not_exact
    graph = speech.batch.graph
    on_threads = BatchedRunner(graph, open_session(graph, 3), speech.batch.model, BatchLimits(6, LENGTH))
    found = [logits_in_any_company(batch, speech.sequences, STEPS) for batch in (speech.batch, on_threads)]
    assert all(map(np.array_equal, *found))


def test_drafts_have_the_bits_of_single_tokens(speech: Speech) -> None:
    speech.batch.forget()
    expected = logits_of_answers(speech.batch, speech.sequences(), STEPS, 1000)
    speech.batch.forget()
    sequences = speech.sequences()
    for sequence in sequences:
        sequence.batched = True
        sequence.num_read = speech.batch.open(sequence)
    run_pass(speech.batch, [ScheduledChunk.next(sequence, sequence.num_unread) for sequence in sequences])
    drafts = [logits.argmax(axis=-1).tolist()[: 2 + number] for number, logits in enumerate(expected)]
    for sequence, draft in zip(sequences, drafts, strict=True):
        sequence.append(draft.pop(0))
    reads = [ScheduledChunk.next(sequence, draft=draft) for sequence, draft in zip(sequences, drafts, strict=True)]
    found = run_pass(speech.batch, reads)
    for sequence in sequences:
        speech.batch.close(sequence.id)
    for scores, logits in zip(found, expected, strict=True):
        assert np.array_equal(scores.logits, logits[1 : 1 + len(scores.logits)])


@pytest.mark.parametrize("first", [0, 4])
def test_profiled_answers_are_equal_with_a_file_for_each_pass(speech: Speech, tmp_path: Path, first: int) -> None:
    speech.batch.forget()
    for sequence, expected in zip(speech.sequences(), speech.answers, strict=True):
        assert profiled_answer(speech.batch, sequence, STEPS, tmp_path, first=first) == expected
    events = json.loads(min(tmp_path.iterdir()).read_text())
    assert any(event["name"] == "model_run" for event in events)
    assert any("cross_attn" in event["name"] for event in events)


def test_an_answer_is_bitwise_the_same_when_it_is_profiled(
    speech: Speech, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, logits = speech.batch.forward, list[NDArray[np.float32]]()

    def note(chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        scores = forward(chunks)
        logits.extend(each.last.copy() for each in scores)
        return scores

    monkeypatch.setattr(speech.batch, "forward", note)
    for is_profiled in (False, True):
        speech.batch.forget()
        sequence = speech.sequences()[1]
        profiled_answer(speech.batch, sequence, STEPS, tmp_path, last=8 if is_profiled else 4)
    usual, profiled = np.split(np.concatenate(logits), 2)
    np.testing.assert_array_equal(profiled, usual)


def test_features_of_another_size_are_named(speech: Speech) -> None:
    wanted = ", ".join(map(str, speech.encoder.shape))
    with pytest.raises(RunnerFailed, match=rf"needs features \[1, {wanted}\], given \(1, 2, 3\)"):
        speech.encoder.encode({FEATURES: np.zeros((1, 2, 3), np.float32)})
