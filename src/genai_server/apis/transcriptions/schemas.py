"""The forms that OpenAI's endpoints for transcription and translation receive, and functions that write a complete
transcript in OpenAI's formats: json, verbose_json, text, and the subtitle formats srt and vtt.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from genai_server.apis.transcriptions.windows import Segment
from genai_server.generation.parameters.base import StrictModel, Text, elements, field_error
from genai_server.http.json_response import JsonObject
from genai_server.media.audio.detection import Detection
from genai_server.messages.generation_request import TokenLogprob
from genai_server.model_files.speech_and_vision import SAMPLE_RATE

_NO_SPEAKERS = "this server does not tell speakers apart"
_MAX_LANGUAGES = 100
_MAX_CHOICES = 8
_MAX_MILLISECONDS = 30_000


class TranscriptFormat(StrEnum):
    """The field `response_format` of a form: the formats in which a transcript can be returned."""

    JSON = "json"
    TEXT = "text"
    VERBOSE_JSON = "verbose_json"
    SRT = "srt"
    VTT = "vtt"


class AudioForm(StrictModel):
    """Base class of the forms that /v1/audio/transcriptions and /v1/audio/translations receive: the file with the
    recording, the model, the language, the format of the response, and how to sample and schedule. All values in a form
    are texts, also numbers.
    """

    model_config = ConfigDict(strict=False)

    # Strict, because a text would be a path that the client has chosen.
    file: Annotated[Path, WithJsonSchema({"type": "string", "format": "binary"})] = Field(
        strict=True,
        description="The recording, in one of the formats flac, mp3, mp4, mpeg, mpga, m4a, ogg, wav and webm.",
    )
    model: str | None = Field(None, description="Id of a served model; by default the first one that transcribes.")
    language: Annotated[str, Field(max_length=64)] | None = Field(
        None,
        description="Code of the recording's language, such as `en` or `en-US`; detected by default, and with `auto`.",
    )
    prompt: Text | None = Field(
        None,
        description="Text that precedes the recording, with names or words that it has. Its last tokens count, up to "
        "half of the model's context.",
    )
    response_format: TranscriptFormat = Field(
        TranscriptFormat.JSON, description="`verbose_json`, `srt` and `vtt` have times of segments."
    )
    temperature: float | None = Field(
        None,
        ge=0,
        le=1,
        description="0 by default. A window whose transcript repeats itself or is improbable is transcribed again "
        "with higher temperatures.",
    )
    stream: bool | None = Field(None, description="Whether to send the transcript as server-sent events.")
    device: str | None = Field(None, description="Configured device to run on; by default the least busy one.")
    priority: int | None = Field(
        None, ge=-1000, le=1000, description="Of a key's requests, those with lower values come first; 0 by default."
    )
    timeout: float | None = Field(None, gt=0, description="Seconds, including waiting, after which the request fails.")
    user: Any = Field(None, description="Accepted, but has no effect.")

    @property
    def has_words(self) -> bool:
        """Whether a response in the format verbose_json lists the words with their times. False for translations."""
        return False

    @property
    def has_segments(self) -> bool:
        """Whether a response in the format verbose_json lists the segments with their times. True for translations."""
        return True

    @model_validator(mode="after")
    def _streams_text(self) -> Self:
        if self.stream and self.response_format not in (TranscriptFormat.JSON, TranscriptFormat.TEXT):
            raise field_error(
                "stream", f"is only allowed with response_format json or text; given {self.response_format.value}"
            )
        return self


class TranslationForm(AudioForm):
    """Form that /v1/audio/translations receives. The fields `language` and `stream` do not exist in OpenAI's own API
    for translations.
    """


class ServerVad(StrictModel):
    """The value of the field `chunking_strategy` that sets how speech is distinguished from silence (voice activity
    detection). A form has its members as separate fields `chunking_strategy[type]` and so on, or as one field with a
    JSON object.
    """

    model_config = ConfigDict(strict=False)

    type: Literal["server_vad"]
    threshold: float | None = Field(
        None, ge=0, le=1, description="Probability from which on audio counts as speech; 0.2 by default."
    )
    prefix_padding_ms: int | None = Field(
        None,
        ge=0,
        le=_MAX_MILLISECONDS,
        description="Milliseconds of audio that are kept before speech; 1000 by default.",
    )
    silence_duration_ms: int | None = Field(
        None,
        ge=0,
        le=_MAX_MILLISECONDS,
        description="Milliseconds of silence at which a window may end; by default a long pause is preferred.",
    )

    @property
    def detection(self) -> Detection:
        """The parameters of the server's speech detector for these fields, with lengths in samples; the detector's
        defaults replace fields that are not given.
        """
        samples = SAMPLE_RATE // 1000
        options: dict[str, Any] = {
            "threshold": self.threshold,
            "padding": None if self.prefix_padding_ms is None else self.prefix_padding_ms * samples,
            "pause": None if self.silence_duration_ms is None else self.silence_duration_ms * samples,
        }
        return Detection()._replace(**{name: value for name, value in options.items() if value is not None})


class TranscriptionForm(AudioForm):
    """Form that /v1/audio/transcriptions receives. In addition to the fields of both audio endpoints, it has possible
    languages, the parts that have times, log probabilities, and how speech is detected. A list is given by repeating a
    field such as `include[]` for each value.
    """

    languages: Annotated[list[str], elements(_MAX_LANGUAGES)] | None = Field(
        None, description="Codes of the languages that the recording may have; the most probable one is used."
    )
    timestamp_granularities: Annotated[list[Literal["segment", "word"]], elements(_MAX_CHOICES)] | None = Field(
        None,
        description="What has times with `response_format` verbose_json: `segment`, `word`, or both; by default "
        "segments. Words take another pass over each window.",
    )
    include: Annotated[list[Literal["logprobs"]], elements(_MAX_CHOICES)] | None = Field(
        None, description="`logprobs`: also return the log probability of each token; with `response_format` json."
    )
    chunking_strategy: Literal["auto"] | ServerVad | None = Field(
        None,
        description="Silence is always left out, and windows begin where segments end; `server_vad` changes how "
        "speech is distinguished from silence.",
    )
    keywords: Any = Field(None, description="Not supported.")
    known_speaker_names: Any = Field(None, description="Not supported.")
    known_speaker_references: Any = Field(None, description="Not supported.")

    @property
    def has_words(self) -> bool:
        return "word" in (self.timestamp_granularities or ())

    @property
    def has_segments(self) -> bool:
        return "segment" in (self.timestamp_granularities or ("segment",))

    @field_validator("chunking_strategy", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                return json.loads(value)
            except ValueError:
                return value
        return value

    @model_validator(mode="before")
    @classmethod
    def _tells_no_speakers(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("response_format") == "diarized_json":
            raise field_error("response_format", f"cannot be diarized_json: {_NO_SPEAKERS}")
        return value

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for field in ("known_speaker_names", "known_speaker_references"):
            if getattr(self, field) is not None:
                raise field_error(field, f"is not supported: {_NO_SPEAKERS}")
        if self.keywords is not None:
            raise field_error("keywords", "is not supported: write the words into prompt")
        if self.language is not None and self.languages is not None:
            raise field_error("languages", "cannot be combined with language")
        suffix = f"; given {self.response_format.value}"
        if self.timestamp_granularities is not None and self.response_format is not TranscriptFormat.VERBOSE_JSON:
            raise field_error("timestamp_granularities", f"is only allowed with response_format verbose_json{suffix}")
        if self.include is not None and self.response_format is not TranscriptFormat.JSON:
            raise field_error("include", f"is only allowed with response_format json{suffix}")
        return self


class DurationUsage(BaseModel):
    """The field `usage` of a transcript: the length of the recording in seconds, rounded up."""

    type: Literal["duration"]
    seconds: int


class TranscribedToken(BaseModel):
    """A token of a transcript with its text, its bytes and its log probability."""

    token: str
    bytes: list[int]
    logprob: float


class DetectedLanguage(BaseModel):
    """A language that is spoken in a recording, by its code such as `en`."""

    code: str


class TranscriptionResponse(BaseModel):
    """Response of the audio endpoints with `response_format` json: the text and the length of the recording.

    `languages` is empty if nobody speaks, and absent from translations. `logprobs` is present if the form's field
    `include[]` asks for it.
    """

    text: str
    usage: DurationUsage
    languages: list[DetectedLanguage] | None = None
    logprobs: list[TranscribedToken] | None = None


class TranscribedSegment(BaseModel):
    """A segment of a transcript in the format verbose_json: its text and tokens, its times in seconds, and numbers by
    which its quality can be judged. `seek` is the beginning of the segment's window, the part of the recording that the
    model read at once, in hundredths of a second.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscribedWord(BaseModel):
    """A word of a transcript in the format verbose_json, without the punctuation around it. Times are in seconds."""

    word: str
    start: float
    end: float


class VerboseTranscriptionResponse(BaseModel):
    """Response of the audio endpoints with `response_format` verbose_json: the text, its language, and the length of
    the recording in seconds. It has segments, words or both, as the form's field `timestamp_granularities[]` asks.
    """

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[TranscribedSegment] | None = None
    words: list[TranscribedWord] | None = None
    usage: DurationUsage


_NAMES = (
    "af afrikaans,am amharic,ar arabic,as assamese,az azerbaijani,ba bashkir,be belarusian,bg bulgarian,bn bengali,"
    "bo tibetan,br breton,bs bosnian,ca catalan,cs czech,cy welsh,da danish,de german,el greek,en english,es spanish,"
    "et estonian,eu basque,fa persian,fi finnish,fo faroese,fr french,gl galician,gu gujarati,ha hausa,haw hawaiian,"
    "he hebrew,hi hindi,hr croatian,ht haitian creole,hu hungarian,hy armenian,id indonesian,is icelandic,it italian,"
    "ja japanese,jw javanese,ka georgian,kk kazakh,km khmer,kn kannada,ko korean,la latin,lb luxembourgish,ln lingala,"
    "lo lao,lt lithuanian,lv latvian,mg malagasy,mi maori,mk macedonian,ml malayalam,mn mongolian,mr marathi,ms malay,"
    "mt maltese,my myanmar,ne nepali,nl dutch,nn nynorsk,no norwegian,oc occitan,pa punjabi,pl polish,ps pashto,"
    "pt portuguese,ro romanian,ru russian,sa sanskrit,sd sindhi,si sinhala,sk slovak,sl slovenian,sn shona,so somali,"
    "sq albanian,sr serbian,su sundanese,sv swedish,sw swahili,ta tamil,te telugu,tg tajik,th thai,tk turkmen,"
    "tl tagalog,tr turkish,tt tatar,uk ukrainian,ur urdu,uz uzbek,vi vietnamese,yi yiddish,yo yoruba,yue cantonese,"
    "zh chinese"
)
# English names, keyed by code.
LANGUAGE_NAMES: Mapping[str, str] = {
    code: name for code, _, name in (entry.partition(" ") for entry in _NAMES.split(","))
}
ENGLISH = "en"


def language_name(code: str) -> str:
    """Return the English name of a language by its code, such as "german" for "de"; the code itself if the name is
    unknown.
    """
    return LANGUAGE_NAMES.get(code, code)


# Digits of times after the point.
_TIME_DIGITS = 3
_BLANK_LINES = re.compile(r"\s*\n\s*")


@dataclass(frozen=True)
class Transcript:
    """The complete transcript of a recording: its segments, and the length and language of the recording. The functions
    of this module that end in `_body` write it in OpenAI's formats.
    """

    segments: Sequence[Segment]
    # In seconds.
    duration: float
    # Code of the spoken language; None without speech.
    language: str | None
    is_translated: bool = False

    @property
    def text(self) -> str:
        """The text of the whole recording, without white space at its ends."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def logprobs(self) -> Iterable[TokenLogprob]:
        """The log probabilities of all tokens of the text, in order, as far as the segments have them."""
        return (logprob for segment in self.segments for logprob in segment.logprobs)


class TextDeltas:
    """Splits the text of a transcript into the deltas of a stream. Together they are the text without white space at
    its ends. The attribute `text` is what has been sent so far.
    """

    def __init__(self) -> None:
        self.text = ""
        # White space that is sent if more text follows.
        self._held = ""

    def add(self, text: str) -> str:
        """Return the delta to send for `text`, the text of the next segment of the transcript. It may be empty: white
        space at the end is held back until more text follows.
        """
        pending = self._held + text if self.text else text.lstrip()
        delta = pending.rstrip()
        self._held = pending[len(delta) :]
        self.text += delta
        return delta


def usage_of(duration: float) -> JsonObject:
    """Return the object `usage` of a transcript: the length of the recording, `duration` in seconds, rounded up as
    OpenAI does.
    """
    return {"type": "duration", "seconds": math.ceil(duration)}


def json_body(transcript: Transcript, token_bytes: Callable[[int], bytes] | None = None) -> JsonObject:
    """Return a transcript as a response body in the format json. With `token_bytes`, a function that returns the bytes
    of a token, the body has log probabilities.
    """
    body: JsonObject = {"text": transcript.text, "usage": usage_of(transcript.duration)}
    if not transcript.is_translated:
        body["languages"] = detected(transcript.language)
    return body if token_bytes is None else body | {"logprobs": scored_tokens(transcript.logprobs, token_bytes)}


def detected(language: str | None) -> list[JsonObject]:
    """Return the field `languages` of a transcript: a list with the code of the language, or an empty list for None, if
    nobody speaks.
    """
    return [] if language is None else [{"code": language}]


def scored_tokens(logprobs: Iterable[TokenLogprob], token_bytes: Callable[[int], bytes]) -> list[JsonObject]:
    """Return tokens with their text, bytes and log probability, in OpenAI's format. `token_bytes` returns the bytes of
    a token id.
    """
    tokens = []
    for logprob in logprobs:
        data = token_bytes(logprob.token)
        tokens.append({"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob.logprob})
    return tokens


def verbose_body(transcript: Transcript, *, has_segments: bool = True, has_words: bool = False) -> JsonObject:
    """Return a transcript as a response body in the format verbose_json, with the times of segments, words, or both."""
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
    """Return a transcript as plain text, or as subtitles in the format srt or vtt."""
    if form is TranscriptFormat.TEXT:
        return f"{transcript.text}\n"
    if form is TranscriptFormat.SRT:
        return "".join(f"{number}\n{cue}\n" for number, cue in enumerate(_cues(transcript, ","), 1))
    return "WEBVTT\n\n" + "".join(f"{cue}\n" for cue in _cues(transcript, "."))


def _cues(transcript: Transcript, point: str) -> Iterable[str]:
    for segment in transcript.segments:
        # A blank line would end the subtitle.
        text = _BLANK_LINES.sub("\n", segment.text.strip().replace("-->", "->"))
        yield f"{_time(segment.start, point)} --> {_time(segment.end, point)}\n{text}\n"


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    whole_seconds, fraction = divmod(milliseconds, 1000)
    return f"{whole_seconds // 3600:02d}:{whole_seconds // 60 % 60:02d}:{whole_seconds % 60:02d}{point}{fraction:03d}"
