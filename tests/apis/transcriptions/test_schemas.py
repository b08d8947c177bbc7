"""Which forms are accepted, and how the error of another one names its field."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from genai_server.apis.transcriptions.schemas import ServerVad, TranscriptFormat, TranscriptionForm, TranslationForm
from genai_server.http.error_responses import from_findings
from genai_server.media.audio.detection import Detection

FILE = {"file": Path("a.wav")}
VERBOSE = {"response_format": "verbose_json"}


def refused(form: type[TranscriptionForm | TranslationForm], **fields: Any) -> tuple[str | None, str]:
    """Field and message of the error."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(form).validate_python(FILE | fields)
    findings = [{**finding, "loc": ("body", *finding["loc"])} for finding in caught.value.errors(include_url=False)]
    error = from_findings(findings, FILE | fields)
    return error.param, error.message


def test_values_are_read_from_their_texts() -> None:
    fields = {"temperature": "0.5", "stream": "true", "priority": "-3", "timeout": "2.5", "response_format": "text"}
    form = TranscriptionForm.model_validate(FILE | fields)
    assert (form.temperature, form.stream, form.priority, form.timeout) == (0.5, True, -3, 2.5)
    assert form.response_format is TranscriptFormat.TEXT
    assert TranscriptionForm.model_validate(FILE).response_format is TranscriptFormat.JSON


def test_all_fields_of_openai_with_an_effect_are_accepted() -> None:
    fields = {"model": "m", "language": "en", "prompt": "x", "chunking_strategy": "auto"}
    verbose = {"response_format": "verbose_json", "timestamp_granularities": ["segment"]}
    assert TranscriptionForm.model_validate({**FILE, **fields, **verbose}).chunking_strategy == "auto"
    assert TranscriptionForm.model_validate({**FILE, **fields, "include": ["logprobs"]}).include == ["logprobs"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, (True, False)),
        (["segment"], (True, False)),
        (["word"], (False, True)),
        (["word", "segment"], (True, True)),
    ],
)
def test_granularities_choose_segments_and_words(given: list[str] | None, shown: tuple[bool, bool]) -> None:
    fields = {} if given is None else {"timestamp_granularities": given}
    form = TranscriptionForm.model_validate({**FILE, **VERBOSE, **fields})
    assert (form.has_segments, form.has_words) == shown


@pytest.mark.parametrize("written", [{"threshold": "0.6"}, {"threshold": 0.6}])
def test_values_of_the_detector_may_be_chosen(written: dict[str, Any]) -> None:
    given = {"type": "server_vad", "silence_duration_ms": "500", **written}
    for strategy in (given, json.dumps(given)):
        found = TranscriptionForm.model_validate({**FILE, "chunking_strategy": strategy}).chunking_strategy
        assert isinstance(found, ServerVad)
        assert found.detection == Detection(threshold=0.6, pause=8000)
    padded = ServerVad.model_validate({"type": "server_vad", "prefix_padding_ms": "0"})
    assert padded.detection == Detection(padding=0)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"chunking_strategy": {"type": "server_vad", "threshold": "2"}}, "chunking_strategy.threshold", "at most 1"),
        ({"chunking_strategy": {"threshold": "0.5"}}, "chunking_strategy.type", "is required"),
        ({"chunking_strategy": {"type": "auto"}}, "chunking_strategy.type", 'given "auto"'),
        ({"chunking_strategy": {"type": "server_vad", "eagerness": "1"}}, "chunking_strategy.eagerness", "not a field"),
        ({"chunking_strategy": "{"}, "chunking_strategy", 'given "{"'),
        ({"response_format": "xml"}, "response_format", 'given "xml"'),
        ({"response_format": "diarized_json"}, "response_format", "does not tell speakers apart"),
        ({"known_speaker_names": ["a"]}, "known_speaker_names", "does not tell speakers apart"),
        ({"known_speaker_references": ["data:"]}, "known_speaker_references", "does not tell speakers apart"),
        ({"temperature": "2"}, "temperature", "at most 1"),
        ({"temperature": "-1"}, "temperature", "at least 0"),
        ({"temperature": "warm"}, "temperature", 'given "warm"'),
        ({"temperature": "nan"}, "temperature", "finite"),
        ({"timestamp_granularities": ["segment"]}, "timestamp_granularities", "verbose_json; given json"),
        ({**VERBOSE, "timestamp_granularities": ["page"]}, "timestamp_granularities[0]", 'given "page"'),
        ({"include": ["logprobs"], "response_format": "text"}, "include", "response_format json"),
        ({"include": ["x"]}, "include[0]", "logprobs"),
        ({"chunking_strategy": "server_vad"}, "chunking_strategy", 'given "server_vad"'),
        ({"keywords": ["a"]}, "keywords", "prompt"),
        ({"language": "en", "languages": ["de"]}, "languages", "cannot be combined with language"),
        ({"stream": "true", "response_format": "srt"}, "stream", "json or text; given srt"),
        ({"hotwords": "a"}, "hotwords", "not a field of this endpoint"),
        ({"timeout": "0"}, "timeout", "greater than 0"),
    ],
)
def test_wrong_fields_are_named_with_the_reason(fields: dict[str, Any], param: str, words: str) -> None:
    found, message = refused(TranscriptionForm, **fields)
    assert found == param
    assert words in message


@pytest.mark.parametrize("field", ["include", "languages", "timestamp_granularities", "known_speaker_names"])
def test_translations_have_fewer_fields(field: str) -> None:
    assert refused(TranslationForm, **{field: ["a"]}) == (field, f"{field} is not a field of this endpoint")
