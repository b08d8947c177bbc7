"""The endpoints /v1/audio/transcriptions and /v1/audio/translations of OpenAI's API, and how a recording is transcribed
window by window, as in arXiv 2212.04356, section 4.5. Entry points are `begin` and `Transcription.windows`.

A window is the part of a recording that the speech model reads at once, usually up to 30 seconds. Each window begins
where the last complete segment of the transcript ended, and the model's prompt contains the text before the window.
"""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any

from fastapi import Body
from fastapi.responses import PlainTextResponse, Response

from genai_server.apis.shared.router import VersionedRouter
from genai_server.apis.transcriptions.schemas import (
    ENGLISH,
    AudioForm,
    ServerVad,
    TextDeltas,
    Transcript,
    TranscriptFormat,
    TranscriptionForm,
    TranscriptionResponse,
    TranslationForm,
    VerboseTranscriptionResponse,
    detected,
    json_body,
    plain_body,
    scored_tokens,
    verbose_body,
)
from genai_server.apis.transcriptions.windows import (
    Segment,
    Span,
    TranscriptTask,
    WindowTranscriber,
    WindowTranscript,
    bounded,
    split,
    words_of,
)
from genai_server.engine_client.client import EngineClient
from genai_server.errors import InvalidField
from genai_server.generation.dependencies import (
    RequestContext,
    RequestContextDep,
    Services,
    ServicesDep,
    choose_engine,
    within,
)
from genai_server.generation.engine_requests import EngineRequests
from genai_server.http.body_route import BodyRoute
from genai_server.http.json_response import JsonObject, built_response
from genai_server.http.streams import Event, EventStream
from genai_server.http.upload import FORM
from genai_server.media.audio.detection import Detection
from genai_server.media.audio.recordings import Recording, Window, require_decoder
from genai_server.messages.generation_request import GenerationRequest
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.model_files.pooling_model import Task
from genai_server.model_files.speech_and_vision import SpeechModel
from genai_server.text.codec import TextCodec

# The text before a window is left out of its prompt after a transcript with a higher temperature.
_MAX_CONDITIONING = 0.5
# Seconds. Less is not transcribed.
_MIN_WINDOW = 0.1
_AUDIO_TOKENS_PER_SECOND = 50
# The value of `language` with which the language is detected, as without the field.
_DETECT_LANGUAGE = "auto"
# What follows the language in a tag such as `en-US` or `zh_Hant`.
_SUBTAGS = re.compile(r"[-_].*", re.DOTALL)
_WORDS = "timestamp_granularities"
_NO_WORDS = (
    "times of words need the decoder's attention to the audio, which is only read where the server runs its graph"
)


@dataclass(frozen=True)
class TranscriptionOptions:
    """What one request for a transcription asks for: the language or the languages to choose from, the tokens of the
    text before the recording, whether to translate, the sampling temperature and the parts of the response. Created by
    `begin` from the request's form.
    """

    # Code of the language; None to detect it.
    language: str | None
    # Codes of the languages among which it is detected; empty for all.
    candidates: Sequence[str]
    # Tokens of the text before the recording.
    prompt: list[int]
    translates: bool
    temperature: float
    shows_no_speech: bool
    has_words: bool = False


class Transcription:
    """The transcription of one recording, created by `begin`. A caller iterates over `windows`, which runs the model on
    one part of the recording after another and yields the segments of the text. `close` must be called at the end; it
    cancels what still runs.

    The attribute `duration` is the length of the recording in seconds; `language` is the code of the language that was
    given or detected, or None without speech.
    """

    # What a stream reports of prompts: nothing.
    progress = None

    def __init__(
        self,
        model: SpeechModel,
        recording: Recording,
        requests: EngineRequests,
        transcriber: WindowTranscriber,
        options: TranscriptionOptions,
    ) -> None:
        self.duration = recording.duration
        # Code of the language that was given or detected; None without speech.
        self.language = options.language
        self.translates = options.translates
        self.token_bytes = transcriber.token_bytes
        self._transcriber = transcriber
        self._model = model
        self._recording = recording
        self._requests = requests
        self._options = options
        self._transcribed = self._transcribe()
        # The first window, where `wait_until_accepted` has begun with it.
        self._first: asyncio.Future[list[Segment] | None] | None = None

    async def wait_until_accepted(self) -> None:
        """Start the transcription, and wait until an engine has accepted its first part or the transcription has ended,
        so that most errors are known before a streamed response begins.

        Raises the errors with which engines refuse or fail a request, InvalidField if the recording cannot be read, and
        AudioReaderUnavailable. What has been started must be ended with `close`.
        """
        first = self._first = asyncio.ensure_future(anext(self._transcribed, None))
        first.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may never be awaited
        accepted = asyncio.create_task(self._requests.accepted.wait())
        try:
            await asyncio.wait({first, accepted}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            first.cancel()
            raise
        finally:
            accepted.cancel()
        if first.done():
            first.result()

    async def windows(self) -> AsyncGenerator[list[Segment]]:
        """Transcribe the recording, and yield the segments of each window, in order, as soon as they are final. A
        window is the part of the recording that the model reads at once; those without speech yield nothing.

        Raises the errors with which engines refuse or fail a request, InvalidField if the recording cannot be read, and
        AudioReaderUnavailable.
        """
        async with aclosing(self._transcribed) as transcribed:
            if self._first is not None and (first := await self._first) is not None:
                yield first
            async for segments in transcribed:
                yield segments

    async def _transcribe(self) -> AsyncGenerator[list[Segment]]:
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
            transcript = await self._transcriber.transcribe(window, previous, task)
            seek = window.end
            if transcript.is_silent:
                continue
            spans, advance = split(transcript.tokens, self._model, window.end - window.start, is_cut=window.is_cut)
            seek = min(window.start + advance, window.end)
            segments = [each for span in spans if (each := self._segment(transcript, window, span)) is not None]
            if options.has_words and segments:
                segments = await self._with_words(segments, window, task)
            if transcript.temperature > _MAX_CONDITIONING:
                previous = []
            else:
                new = [token for segment in segments for token in segment.tokens]
                previous = [*previous, *new][-self._model.context_length :]
            if segments:
                yield segments
        self._requests.finish()

    async def _with_words(self, segments: list[Segment], window: Window, task: TranscriptTask) -> list[Segment]:
        """Return the segments of a window, a part of the recording that the model reads at once, with the times of
        their words. To find the times, the model reads the window and its text once more. `task` says how the window
        was transcribed. The given segments are not changed.
        """
        texts = [[token for token in segment.tokens if self._transcriber.is_text(token)] for segment in segments]
        times = await self._transcriber.token_times(window, list(chain(*texts)), task)
        times = [min(window.start + time, window.end) for time in times]
        timed, first = [], 0
        for segment, text in zip(segments, texts, strict=True):
            words = words_of(text, times[first : first + len(text) + 1], self.token_bytes, task.language)
            timed.append(replace(segment, words=bounded(words, segment.start, segment.end)))
            first += len(text)
        return timed

    async def _window(self, seek: float) -> Window | None:
        with self._requests.recording_errors():
            async with within(self._requests.deadline):
                return await self._recording.window(seek)

    def usage(self) -> JsonObject:
        """Return the token counts so far, in the format of the last event of OpenAI's streams. The number of audio
        tokens is computed from the length of the recording.
        """
        used, audio = self._requests.usage, math.ceil(self.duration * _AUDIO_TOKENS_PER_SECOND)
        details = {"audio_tokens": audio, "text_tokens": used.prompt}
        tokens = {"input_tokens": audio + used.prompt, "output_tokens": used.completion}
        return {"type": "tokens", **tokens, "total_tokens": sum(tokens.values()), "input_token_details": details}

    def close(self) -> None:
        """Cancel the reading of the current window of the recording and the engine request that is running."""
        if self._first is not None:
            self._first.cancel()
        self._requests.close()

    def _segment(self, transcript: WindowTranscript, window: Window, span: Span) -> Segment | None:
        """Create the segment of the transcript for `span`, a part of the tokens that the model wrote for `window`.
        Returns None if the segment would have no text or no length.
        """
        tokens = transcript.tokens[span.first : span.last]
        text = self._transcriber.text(tokens)
        if not text.strip() or span.end <= span.start:
            return None
        scored = transcript.logprobs[span.first : span.last]
        return Segment(
            start=min(window.start + span.start, window.end),
            end=min(window.start + span.end, window.end),
            text=text,
            tokens=tokens,
            window_start=window.start,
            temperature=transcript.temperature,
            avg_logprob=transcript.avg_logprob,
            compression_ratio=transcript.compression_ratio,
            no_speech_prob=transcript.no_speech_prob,
            logprobs=[logprob for logprob in scored if self._transcriber.is_text(logprob.token)],
        )


async def begin(services: Services, form: AudioForm, context: RequestContext, *, translates: bool) -> Transcription:
    """Begin to serve a request for a transcription: choose the model, open the recording in the form, and return the
    Transcription, which has not started yet. The recording's temporary files exist until the request has ended.
    `translates` says whether the transcript is to be in English.

    Raises RequestError if the request is invalid, Unavailable if no engine can take it, and DeadlinePassed.
    """
    models = services.models
    chosen, _, engine, info, codec = await choose_engine(services, context, form, Task.TRANSCRIBE)
    engine.require_capacity(1, param="file", tenant=context.tenant)
    model = codec.speech
    if model is None:
        raise InvalidField("model", f"{chosen.id} has been replaced by one that does not transcribe")
    if translates and not model.languages:
        raise InvalidField("model", f"{chosen.id} only knows English, so it does not translate")
    options = await _options(form, model, codec, context.owner, translates=translates)
    if options.has_words and not info.aligns:
        raise InvalidField(_WORDS, f"cannot be word with model {chosen.id}: {_NO_WORDS}")
    require_decoder("file")
    async with within(context.deadline):
        recording = await services.recordings.open(
            model, form.file, context.requester(), param="file", detection=_detection(form)
        )
    context.counted.callback(recording.close)
    context.release_body()  # the uploaded file has been removed

    async def pick() -> EngineClient:
        """Choose the engine for a window. Between two windows the model counts as idle and may have been unloaded."""
        _, served = await models.serving(models.choose(chosen.id), context.deadline.seconds_left)
        return served.router.pick(form.device, tenant=context.tenant)[0]

    requests = EngineRequests(context, pick, param="file")
    base = GenerationRequest(
        context.record.request_id,
        [],
        max_tokens=0,
        max_length=min(model.context_length, info.max_length),
        cache_salt=context.cache_salt(None),
        tenant=context.tenant,
        priority=form.priority or 0,
        precedence=context.precedence(form.priority),
        exact=services.settings.exact,
        unique_id=context.record.unique_id,
        key_name=context.record.key_name,
    )
    return Transcription(model, recording, requests, WindowTranscriber(model, codec, requests, base), options)


async def _options(
    form: AudioForm, model: SpeechModel, codec: TextCodec, owner: TaskOwner, *, translates: bool
) -> TranscriptionOptions:
    candidates = [] if not isinstance(form, TranscriptionForm) else form.languages or []
    candidates = [_known(code, model, "languages") for code in candidates]
    language = None
    if form.language is not None and form.language.strip().lower() != _DETECT_LANGUAGE:
        language = _known(form.language, model, "language")
    if not model.languages:
        language = ENGLISH
    prompt: list[int] = []
    if form.prompt is not None and (text := form.prompt.strip()):
        prompt = await codec.encode_text(
            f" {text}", add_special=False, parse_special=False, param="prompt", owner=owner
        )
    return TranscriptionOptions(
        language,
        candidates,
        prompt[-model.context_length :],
        translates,
        form.temperature or 0.0,
        shows_no_speech=form.response_format is TranscriptFormat.VERBOSE_JSON,
        has_words=form.has_words,
    )


def _detection(form: AudioForm) -> Detection:
    """Return the parameters for telling speech from silence: those that the form sets, or else the defaults."""
    strategy = form.chunking_strategy if isinstance(form, TranscriptionForm) else None
    return strategy.detection if isinstance(strategy, ServerVad) else Detection()


def _known(code: str, model: SpeechModel, param: str) -> str:
    """Return the code that the speech model uses for a language. `code` is what the client gave, such as `en` or
    `en-US`; the region is ignored. Raises InvalidField, which names the field `param`, if the model does not know the
    language.
    """
    languages = sorted(model.languages) or [ENGLISH]
    language = _SUBTAGS.sub("", code.strip().lower())
    if language not in languages:
        raise InvalidField(param, f"must be one of the model's languages ({', '.join(languages)})", given=code)
    return language


_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
# Where bodies with recordings are expected.
UPLOAD_PATHS = frozenset(_PATHS) | {path.removeprefix("/v1") for path in _PATHS}
router = VersionedRouter(BodyRoute, "openai", codes=(504,))
# Bodies with more segments are encoded in a thread.
_FEW_SEGMENTS = 100
# What else the responses are.
_TEXT = {"schema": {"type": "string"}}
_TEXTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": _TEXT, "text/event-stream": _TEXT}}}
_Answer = TranscriptionResponse | VerboseTranscriptionResponse
_Scored = Callable[[int], bytes] | None


@router.post(_PATHS[0], response_model=_Answer, responses=_TEXTS)
async def transcribe_recording(
    form: Annotated[TranscriptionForm, Body(media_type=FORM)], services: ServicesDep, context: RequestContextDep
) -> Response:
    """Transcribe a recording, which may be hours long, as text, JSON or subtitles, or as a stream of events. Needs a
    model that transcribes, such as Whisper.
    """
    return await _transcribed(services, form, context, translates=False)


@router.post(_PATHS[1], response_model=_Answer, responses=_TEXTS)
async def translate_recording(
    form: Annotated[TranslationForm, Body(media_type=FORM)], services: ServicesDep, context: RequestContextDep
) -> Response:
    """Translate a recording in another language to English text, with the formats and the stream of a transcription.
    Needs a model that transcribes, such as Whisper.
    """
    return await _transcribed(services, form, context, translates=True)


async def _transcribed(services: Services, form: AudioForm, context: RequestContext, *, translates: bool) -> Response:
    shows_logprobs = isinstance(form, TranscriptionForm) and form.include is not None

    async def accepted() -> Transcription:
        transcription = await begin(services, form, context, translates=translates)
        await transcription.wait_until_accepted()
        return transcription

    async def whole() -> tuple[Transcription, list[Segment]]:
        transcription = await begin(services, form, context, translates=translates)
        return transcription, [segment async for segments in transcription.windows() for segment in segments]

    if form.stream:
        transcription = await context.run_while_connected(accepted())
        scored = transcription.token_bytes if shows_logprobs else None
        return EventStream(transcription, _events(transcription, scored))
    transcription, segments = await context.run_while_connected(whole())
    transcript = Transcript(segments, transcription.duration, transcription.language, translates)
    match form.response_format:
        case TranscriptFormat.JSON:
            scored = transcription.token_bytes if shows_logprobs else None
            return await built_response(lambda: json_body(transcript, scored), is_long=len(segments) > _FEW_SEGMENTS)
        case TranscriptFormat.VERBOSE_JSON:
            body = partial(verbose_body, transcript, has_segments=form.has_segments, has_words=form.has_words)
            return await built_response(body, is_long=len(segments) > _FEW_SEGMENTS)
    return PlainTextResponse(plain_body(transcript, form.response_format))


async def _events(transcription: Transcription, scored: _Scored) -> AsyncGenerator[Event]:
    """Yield the events of a streamed transcript: a delta for each segment, and the complete text at the end. Text that
    has been sent is never changed.

    `scored` is None, or a function that returns the bytes of a token; with it, the events have log probabilities.
    """
    deltas, logprobs = TextDeltas(), list[JsonObject]()
    async with aclosing(transcription.windows()) as windows:
        async for segments in windows:
            for segment in segments:
                event: JsonObject = {"type": "transcript.text.delta", "delta": deltas.add(segment.text)}
                if scored is not None:
                    event["logprobs"] = scored_tokens(segment.logprobs, scored)
                    logprobs += event["logprobs"]
                yield event
    done: JsonObject = {"type": "transcript.text.done", "text": deltas.text, "usage": transcription.usage()}
    if not transcription.translates:
        done["languages"] = detected(transcription.language)
    yield done if scored is None else done | {"logprobs": logprobs}
