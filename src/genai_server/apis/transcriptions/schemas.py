"""Forms and responses of OpenAI's transcriptions and translations."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from genai_server.apis.shared.base import Text, Wire, elements, field_error

_NO_WORDS = "the graph of the model gives no cross attention, from which times of words are computed"
_NO_SPEAKERS = "this server does not tell speakers apart"
_MAX_LANGUAGES = 100
_MAX_CHOICES = 8


class TranscriptFormat(StrEnum):
    """What a transcript is returned as."""

    JSON = "json"
    TEXT = "text"
    VERBOSE_JSON = "verbose_json"
    SRT = "srt"
    VTT = "vtt"


class AudioForm(Wire):
    """The fields that both endpoints have. All values of a form are texts, so numbers are written as such."""

    model_config = ConfigDict(strict=False)

    # Strict, because a text would be a path that the client has chosen.
    file: Annotated[Path, WithJsonSchema({"type": "string", "format": "binary"})] = Field(
        strict=True,
        description="The recording, in one of the formats flac, mp3, mp4, mpeg, mpga, m4a, ogg, wav and webm.",
    )
    model: str | None = Field(None, description="Id of a served model; by default the first one that transcribes.")
    language: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="Code of the recording's language, such as `en`; detected by default."
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
        None, ge=-1000, le=1000, description="Requests with lower values are scheduled first; 0 by default."
    )
    timeout: float | None = Field(None, gt=0, description="Seconds, including waiting, after which the request fails.")
    user: Any = Field(None, description="Accepted, but has no effect.")

    @model_validator(mode="after")
    def _streams_text(self) -> Self:
        if self.stream and self.response_format not in (TranscriptFormat.JSON, TranscriptFormat.TEXT):
            raise field_error(
                "stream", f"is only allowed with response_format json or text; given {self.response_format.value}"
            )
        return self


class TranslationForm(AudioForm):
    """Body of /v1/audio/translations. OpenAI's API has neither `language` nor `stream` here."""


class TranscriptionForm(AudioForm):
    """Body of /v1/audio/transcriptions. Lists are written as `include[]`, once for each of their values."""

    languages: Annotated[list[str], elements(_MAX_LANGUAGES)] | None = Field(
        None, description="Codes of the languages that the recording may have; the most probable one is used."
    )
    timestamp_granularities: Annotated[list[Literal["segment", "word"]], elements(_MAX_CHOICES)] | None = Field(
        None, description="Only `segment`, and only with `response_format` verbose_json."
    )
    include: Annotated[list[Literal["logprobs"]], elements(_MAX_CHOICES)] | None = Field(
        None, description="`logprobs`: also return the log probability of each token; with `response_format` json."
    )
    chunking_strategy: Literal["auto"] | None = Field(
        None, description="Silence is always left out, and windows begin where segments end."
    )
    keywords: Any = Field(None, description="Not supported.")
    known_speaker_names: Any = Field(None, description="Not supported.")
    known_speaker_references: Any = Field(None, description="Not supported.")

    @model_validator(mode="before")
    @classmethod
    def _tells_no_speakers(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("response_format") == "diarized_json":
            raise field_error("response_format", f"cannot be diarized_json: {_NO_SPEAKERS}")
        return given

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for field in ("known_speaker_names", "known_speaker_references"):
            if getattr(self, field) is not None:
                raise field_error(field, f"is not supported: {_NO_SPEAKERS}")
        if self.keywords is not None:
            raise field_error("keywords", "is not supported: write the words into prompt")
        if self.language is not None and self.languages is not None:
            raise field_error("languages", "cannot be combined with language")
        if "word" in (self.timestamp_granularities or ()):
            raise field_error("timestamp_granularities", f"cannot be word: {_NO_WORDS}")
        if self.timestamp_granularities is not None and self.response_format is not TranscriptFormat.VERBOSE_JSON:
            raise field_error("timestamp_granularities", "is only allowed with response_format verbose_json")
        if self.include is not None and self.response_format is not TranscriptFormat.JSON:
            raise field_error("include", "is only allowed with response_format json")
        return self


class DurationUsage(BaseModel):
    """The length of the recording in seconds, rounded up."""

    type: Literal["duration"]
    seconds: int


class TranscribedToken(BaseModel):
    """A token with its log probability."""

    token: str
    bytes: list[int]
    logprob: float


class DetectedLanguage(BaseModel):
    """A language of the recording, by its code."""

    code: str


class TranscriptionResponse(BaseModel):
    """Response with `response_format` json.

    `languages` is empty without speech, and absent from translations. `logprobs` is present if `include[]` has it.
    """

    text: str
    usage: DurationUsage
    languages: list[DetectedLanguage] | None = None
    logprobs: list[TranscribedToken] | None = None


class TranscribedSegment(BaseModel):
    """A segment of a transcript. Times are in seconds; `seek` is the beginning of its window in hundredths of one."""

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


class VerboseTranscriptionResponse(BaseModel):
    """Response with `response_format` verbose_json."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[TranscribedSegment]
    usage: DurationUsage
