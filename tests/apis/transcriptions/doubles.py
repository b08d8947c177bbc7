"""Recordings, and an engine for speech, that do what a test says."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from genai_server.errors import GenaiServerError
from genai_server.generation.dependencies import Deadline
from genai_server.generation.engine_requests import EngineAnswer
from genai_server.media.audio.recordings import Window
from genai_server.messages.generation_request import GenerationRequest, TokenLogprob
from genai_server.model_files.speech_and_vision import SpeechModel, read_speech_model
from genai_server.text.codec import TextCodec, load_text_codec
from tests.running_server import ROOT

DIRECTORY = ROOT / "tests" / "built_models" / "whisper"


def _model() -> SpeechModel:
    found = read_speech_model(DIRECTORY)
    assert found is not None
    return found


MODEL = _model()


def at(seconds: float) -> int:
    """The token of a timestamp."""
    return MODEL.first_timestamp + round(seconds * 50)


def load_codec() -> TextCodec:
    return load_text_codec(DIRECTORY, "cpu")


def held_window(start: float, end: float) -> Window:
    """A window without a file."""
    return Window(start, end, Path("no-such-window.npz"), str(start))


@dataclass
class HeldRecording:
    """A recording with speech between `silences`, read in windows of `length` seconds."""

    duration: float
    length: float = 30.0
    # Beginnings and ends in seconds.
    silences: Sequence[tuple[float, float]] = ()
    asked: list[float] = field(default_factory=list)
    is_open: bool = True

    async def window(self, start: float, **_: Any) -> Window | None:
        await asyncio.sleep(0)
        self.asked.append(round(start, 6))
        for begin, end in self.silences:
            if begin <= start < end:
                start = end
        return None if start >= self.duration else held_window(start, min(start + self.length, self.duration))

    def close(self) -> None:
        self.is_open = False


def answer(tokens: Sequence[int], logprob: float = -0.1) -> EngineAnswer:
    """An answer of which all tokens are equally probable."""
    return EngineAnswer(list(tokens), [TokenLogprob(token, logprob) for token in tokens])


def scores(**logprobs: float) -> EngineAnswer:
    """An answer to a question for the probabilities of languages, or of `no_speech`."""
    ids = {**MODEL.languages, "no_speech": MODEL.no_speech}
    return EngineAnswer([0], [TokenLogprob(0, -1.0, [(ids[name], value) for name, value in logprobs.items()])])


class HeldRequests:
    """Answers engine requests in order."""

    def __init__(self, *answers: EngineAnswer) -> None:
        self.asked: list[GenerationRequest] = []
        self.is_finished = False
        # Codes of the errors that ended something else than a request.
        self.noted: list[str] = []
        self.deadline = Deadline(60, monotonic)
        self._answers = list(answers)

    async def run(self, request: GenerationRequest) -> EngineAnswer:
        await asyncio.sleep(0)
        self.asked.append(request)
        return self._answers.pop(0)

    @contextmanager
    def recording_errors(self) -> Iterator[None]:
        try:
            yield
        except GenaiServerError as error:
            self.noted.append(error.code)
            raise

    def finish(self) -> None:
        assert not self._answers
        self.is_finished = True

    def close(self) -> None:
        pass
