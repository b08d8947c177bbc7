"""The transcription of a recording, window by window (arXiv 2212.04356, section 4.5): read `begin`, then `windows`.

A window begins where the last complete segment before it ends, and its prompt has the text before it.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from genai_server.apis.shared.base import JsonObject
from genai_server.apis.transcriptions.engine_requests import EngineRequests
from genai_server.apis.transcriptions.languages import ENGLISH
from genai_server.apis.transcriptions.schemas import AudioForm, TranscriptFormat, TranscriptionForm
from genai_server.apis.transcriptions.segments import Segment, Span, split
from genai_server.apis.transcriptions.window_transcript import TranscriptTask, WindowTranscriber, WindowTranscript
from genai_server.audio.recordings import Recording, Recordings
from genai_server.audio.window_reader import Window
from genai_server.engine_client.client import EngineClient
from genai_server.errors import InvalidField
from genai_server.generation.dependencies import Deadline, RequestContext, Services
from genai_server.generation.interruption import require_end
from genai_server.messages.generation_request import FinishReason, GenerationRequest
from genai_server.pooling_model import Task
from genai_server.quoted_values import quoted
from genai_server.speech_model import SpeechModel
from genai_server.text.codec import TextCodec

# The text before a window is left out of its prompt after a transcript with a higher temperature.
_MAX_CONDITIONING = 0.5
# Seconds. Less is not transcribed.
_MIN_WINDOW = 0.1
_AUDIO_TOKENS_PER_SECOND = 50


@dataclass(frozen=True)
class TranscriptionOptions:
    """What a form says about the transcript."""

    # Code of the language; None to detect it.
    language: str | None
    # Codes of the languages among which it is detected; empty for all.
    candidates: Sequence[str]
    # Tokens of the text before the recording.
    prompt: list[int]
    translates: bool
    temperature: float
    shows_no_speech: bool


class Transcription:
    """A transcription that has begun. `close` cancels what runs in the engine."""

    def __init__(
        self,
        model: SpeechModel,
        recording: Recording,
        requests: EngineRequests,
        transcriber: WindowTranscriber,
        options: TranscriptionOptions,
    ) -> None:
        self.duration = recording.duration
        # Code of the language, as far as it is known.
        self.language = options.language or ENGLISH
        self.translates = options.translates
        self.token_bytes = transcriber.token_bytes
        self._transcriber = transcriber
        self._model = model
        self._recording = recording
        self._requests = requests
        self._options = options

    async def windows(self) -> AsyncGenerator[list[Segment]]:
        """The segments of each window, in order, as soon as its transcript is good enough.

        Raises the errors of EngineRequests, InvalidField and AudioReaderUnavailable.
        """
        options, previous, seek = self._options, self._options.prompt, 0.0
        language = options.language
        while self.duration - seek >= _MIN_WINDOW and (window := await self._window(seek)) is not None:
            if language is None:
                language = self.language = await self._transcriber.detect_language(window, options.candidates)
            task = TranscriptTask(
                language if self._model.languages else "",
                options.translates,
                options.temperature,
                options.shows_no_speech,
            )
            found = await self._transcriber.transcribe(window, previous, task)
            seek = window.end
            if found.is_silent:
                continue
            spans, advance = split(found.tokens, self._model, window.end - window.start)
            seek = min(window.start + advance, window.end)
            segments = [each for span in spans if (each := self._segment(found, window, span)) is not None]
            if found.temperature > _MAX_CONDITIONING:
                previous = []
            else:
                new = [token for segment in segments for token in segment.tokens]
                previous = [*previous, *new][-self._model.context_length :]
            if segments:
                yield segments
        self._requests.finish()

    async def _window(self, seek: float) -> Window | None:
        with self._requests.noting_errors():
            return await self._recording.window(seek)

    def usage(self) -> JsonObject:
        """The tokens in the form that OpenAI's streams have. Those of the recording are the encoder's."""
        used, audio = self._requests.usage, math.ceil(self.duration * _AUDIO_TOKENS_PER_SECOND)
        details = {"audio_tokens": audio, "text_tokens": used.prompt}
        tokens = {"input_tokens": audio + used.prompt, "output_tokens": used.completion}
        return {"type": "tokens", **tokens, "total_tokens": sum(tokens.values()), "input_token_details": details}

    def close(self) -> None:
        """Cancel the engine request that runs."""
        self._requests.close()

    @property
    def progress(self) -> None:
        """Streams report no tokens of a prompt."""
        return

    def _segment(self, found: WindowTranscript, window: Window, span: Span) -> Segment | None:
        """A segment; None for one without text or without length."""
        tokens = found.tokens[span.first : span.last]
        text = self._transcriber.text(tokens)
        if not text.strip() or span.end <= span.start:
            return None
        scored = found.logprobs[span.first : span.last]
        return Segment(
            start=min(window.start + span.start, window.end),
            end=min(window.start + span.end, window.end),
            text=text,
            tokens=tokens,
            window_start=window.start,
            temperature=found.temperature,
            avg_logprob=found.avg_logprob,
            compression_ratio=found.compression_ratio,
            no_speech_prob=found.no_speech_prob,
            logprobs=[each for each in scored if self._transcriber.is_text(each.token)],
        )


async def begin(services: Services, form: AudioForm, context: RequestContext, *, translates: bool) -> Transcription:
    """Choose the model and open the recording, whose files exist until the request has ended.

    Raises RequestError, Unavailable and DeadlinePassed.
    """
    services.drain.require_open()
    models = services.models
    chosen = models.choose_for(form.model, Task.TRANSCRIBE)
    if form.timeout is not None:
        context.deadline.tighten(form.timeout, param="timeout")
    with context.record.arrival.loading():
        chosen, served = await models.serving(chosen, context.deadline.seconds_left)
    engine, _ = served.router.pick(form.device)
    context.record.model, context.record.device = chosen.id, engine.device
    engine.require_capacity(1, param="file")
    codec = served.codec_of(engine.device)
    model = codec.speech
    if model is None:
        raise InvalidField(f"model {chosen.id} has been replaced by one that does not transcribe", param="model")
    if translates and not model.languages:
        raise InvalidField(f"model {chosen.id} only knows English, so it does not translate", param="model")
    options = await _options(form, model, codec, translates=translates)
    recording = await _opened(services.recordings, model, form.file, context.deadline)
    context.counted.callback(recording.close)

    async def pick() -> EngineClient:
        """The engine for a window. While none runs the model counts as idle, and may be unloaded for another one."""
        _, served = await models.serving(models.choose(chosen.id), context.deadline.seconds_left)
        return served.router.pick(form.device)[0]

    requests = EngineRequests(context, pick)
    base = GenerationRequest(
        context.request_id,
        [],
        max_tokens=0,
        max_length=min(model.context_length, services.settings.max_length),
        cache_salt=context.cache_salt(None),
        priority=form.priority or 0,
        exact=services.settings.exact,
        unique_id=context.unique_id,
    )
    return Transcription(model, recording, requests, WindowTranscriber(model, codec, requests, base), options)


async def _opened(recordings: Recordings, model: SpeechModel, file: Path, deadline: Deadline) -> Recording:
    """The decoded recording. Decoding may take minutes, and may have to wait for that of others."""
    try:
        async with asyncio.timeout(deadline.seconds_left):
            return await recordings.open(model, file, param="file")
    except TimeoutError:
        require_end(FinishReason.TIMEOUT, deadline)
        raise


async def _options(form: AudioForm, model: SpeechModel, codec: TextCodec, *, translates: bool) -> TranscriptionOptions:
    candidates = [] if not isinstance(form, TranscriptionForm) else form.languages or []
    candidates = [_known(code, model, "languages") for code in candidates]
    language = None if form.language is None else _known(form.language, model, "language")
    if not model.languages:
        language = ENGLISH
    prompt: list[int] = []
    if form.prompt is not None and (text := form.prompt.strip()):
        prompt = await codec.encode_text(f" {text}", add_special=False, parse_special=False, param="prompt")
    return TranscriptionOptions(
        language,
        candidates,
        prompt[-model.context_length :],
        translates,
        form.temperature or 0.0,
        shows_no_speech=form.response_format is TranscriptFormat.VERBOSE_JSON,
    )


def _known(code: str, model: SpeechModel, param: str) -> str:
    """The code of a language that the model knows. Raises InvalidField."""
    known = sorted(model.languages) or [ENGLISH]
    found = code.strip().lower()
    if found not in known:
        raise InvalidField(
            f"{param} must be one of the model's languages ({', '.join(known)}); given {quoted(code)}", param=param
        )
    return found
