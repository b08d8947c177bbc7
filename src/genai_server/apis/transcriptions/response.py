"""Response bodies with transcripts, in OpenAI's formats."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from genai_server.apis.transcriptions.schemas import ENGLISH, TranscriptFormat, language_name
from genai_server.apis.transcriptions.segments import Segment
from genai_server.http.json_response import JsonObject
from genai_server.messages.generation_request import TokenLogprob

# Digits of times after the point.
_TIME_DIGITS = 3
_BLANK_LINES = re.compile(r"\s*\n\s*")


@dataclass(frozen=True)
class Transcript:
    """The complete transcript of a recording."""

    segments: Sequence[Segment]
    # In seconds.
    duration: float
    # Code of the spoken language; None without speech.
    language: str | None
    is_translated: bool = False

    @property
    def text(self) -> str:
        """The text of the whole recording."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def logprobs(self) -> Iterable[TokenLogprob]:
        """The log probabilities of all tokens of the text, in order."""
        return (each for segment in self.segments for each in segment.logprobs)


class TextDeltas:
    """Splits the text of a transcript into deltas for a stream, without white space at the beginning and the end of the
    whole.
    """

    def __init__(self) -> None:
        self.text = ""
        # White space that is sent if more text follows.
        self._held = ""

    def add(self, text: str) -> str:
        """The delta for the text of the next segment; may be empty."""
        whole = self._held + text if self.text else text.lstrip()
        delta = whole.rstrip()
        self._held = whole[len(delta) :]
        self.text += delta
        return delta


def usage_of(duration: float) -> JsonObject:
    """The object `usage` for a recording: its length in seconds, rounded up as OpenAI does."""
    return {"type": "duration", "seconds": math.ceil(duration)}


def json_body(transcript: Transcript, token_bytes: Callable[[int], bytes] | None = None) -> JsonObject:
    """The response body in the format json. With `token_bytes`, which returns the bytes of a token, it has log
    probabilities.
    """
    body: JsonObject = {"text": transcript.text, "usage": usage_of(transcript.duration)}
    if not transcript.is_translated:
        body["languages"] = detected(transcript.language)
    return body if token_bytes is None else body | {"logprobs": scored_tokens(transcript.logprobs, token_bytes)}


def detected(language: str | None) -> list[JsonObject]:
    """The list of a recording's languages by code: one language, or none if nobody speaks."""
    return [] if language is None else [{"code": language}]


def scored_tokens(logprobs: Iterable[TokenLogprob], token_bytes: Callable[[int], bytes]) -> list[JsonObject]:
    """Tokens with their text, bytes and log probability, in OpenAI's format."""
    found = []
    for each in logprobs:
        data = token_bytes(each.token)
        found.append({"token": data.decode(errors="replace"), "bytes": list(data), "logprob": each.logprob})
    return found


def verbose_body(transcript: Transcript, *, has_segments: bool = True, has_words: bool = False) -> JsonObject:
    """The response body in the format verbose_json, with segments, words, or both."""
    body: JsonObject = {
        "task": "translate" if transcript.is_translated else "transcribe",
        "language": language_name(ENGLISH if transcript.is_translated else transcript.language or ENGLISH),
        "duration": round(transcript.duration, _TIME_DIGITS),
        "text": transcript.text,
        "usage": usage_of(transcript.duration),
    }
    if has_segments:
        body["segments"] = [_segment_body(number, segment) for number, segment in enumerate(transcript.segments)]
    if has_words:
        words = (word for segment in transcript.segments for word in segment.words)
        body["words"] = [
            {"word": word.text, "start": round(word.start, _TIME_DIGITS), "end": round(word.end, _TIME_DIGITS)}
            for word in words
        ]
    return body


def _segment_body(number: int, segment: Segment) -> JsonObject:
    return {
        "id": number,
        "seek": round(segment.window_start * 100),
        "start": round(segment.start, _TIME_DIGITS),
        "end": round(segment.end, _TIME_DIGITS),
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": _short(segment.avg_logprob),
        "compression_ratio": _short(segment.compression_ratio),
        "no_speech_prob": _short(segment.no_speech_prob),
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def plain_body(transcript: Transcript, form: TranscriptFormat) -> str:
    """The response body in the format text, srt or vtt."""
    if form is TranscriptFormat.TEXT:
        return f"{transcript.text}\n"
    if form is TranscriptFormat.SRT:
        return "".join(f"{number}\n{each}\n" for number, each in enumerate(_cues(transcript, ","), 1))
    return "WEBVTT\n\n" + "".join(f"{each}\n" for each in _cues(transcript, "."))


def _cues(transcript: Transcript, point: str) -> Iterable[str]:
    for segment in transcript.segments:
        # A blank line would end the subtitle.
        text = _BLANK_LINES.sub("\n", segment.text.strip().replace("-->", "->"))
        yield f"{_time(segment.start, point)} --> {_time(segment.end, point)}\n{text}\n"


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    whole, fraction = divmod(milliseconds, 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{point}{fraction:03d}"
