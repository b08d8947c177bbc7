"""The endpoints /v1/audio/transcriptions and /v1/audio/translations of OpenAI's API."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import Body
from fastapi.responses import PlainTextResponse, Response

from genai_server.apis.shared.router import VersionedRouter
from genai_server.apis.transcriptions.schemas import (
    AudioForm,
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
from genai_server.apis.transcriptions.transcribe import Transcription, begin
from genai_server.apis.transcriptions.windows import Segment
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.http.body_route import BodyRoute
from genai_server.http.json_response import JsonObject, built_response
from genai_server.http.streams import Event, EventStream
from genai_server.http.upload import FORM

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
    """Transcribe a recording, which may be hours long. Needs a model that transcribes."""
    return await _transcribed(services, form, context, translates=False)


@router.post(_PATHS[1], response_model=_Answer, responses=_TEXTS)
async def translate_recording(
    form: Annotated[TranslationForm, Body(media_type=FORM)], services: ServicesDep, context: RequestContextDep
) -> Response:
    """Transcribe a recording in another language as English text. Needs a model that transcribes."""
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
    found = Transcript(segments, transcription.duration, transcription.language, translates)
    match form.response_format:
        case TranscriptFormat.JSON:
            scored = transcription.token_bytes if shows_logprobs else None
            return await built_response(lambda: json_body(found, scored), is_long=len(segments) > _FEW_SEGMENTS)
        case TranscriptFormat.VERBOSE_JSON:
            body = partial(verbose_body, found, has_segments=form.has_segments, has_words=form.has_words)
            return await built_response(body, is_long=len(segments) > _FEW_SEGMENTS)
    return PlainTextResponse(plain_body(found, form.response_format))


async def _events(transcription: Transcription, scored: _Scored) -> AsyncGenerator[Event]:
    """The events of a streamed transcript: a delta for each segment, and the complete text at the end. Text that has
    been sent is never changed.

    `scored` returns the bytes of a token; the events then have log probabilities.
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
