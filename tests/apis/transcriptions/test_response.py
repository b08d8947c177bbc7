"""Transcripts in OpenAI's formats."""

from dataclasses import replace

import pytest
from openai.types.audio import TranscriptionVerbose

from genai_server.apis.transcriptions.schemas import (
    LANGUAGE_NAMES,
    TextDeltas,
    Transcript,
    TranscriptFormat,
    json_body,
    language_name,
    plain_body,
    verbose_body,
)
from genai_server.apis.transcriptions.windows import Segment
from genai_server.messages.generation_request import TokenLogprob


def segment(text: str, start: float, end: float, *, window: float = 0.0) -> Segment:
    logprobs = [TokenLogprob(ord(character), -0.5) for character in text]
    return Segment(start, end, text, [1000, *map(ord, text), 1001], window, 0.2, -0.25, 1.5, 0.125, logprobs)


TRANSCRIPT = Transcript([segment(" Hi", 0.0, 1.5), segment(" a --> b ", 3661.04, 3662.0, window=3660.0)], 3662.01, "de")


def test_subtitles_have_numbers_and_times_with_commas() -> None:
    assert plain_body(TRANSCRIPT, TranscriptFormat.SRT) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHi\n\n2\n01:01:01,040 --> 01:01:02,000\na -> b\n\n"
    )


def test_web_subtitles_have_a_heading_and_times_with_points() -> None:
    assert plain_body(TRANSCRIPT, TranscriptFormat.VTT) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHi\n\n01:01:01.040 --> 01:01:02.000\na -> b\n\n"
    )


def test_no_text_ends_its_subtitle_early() -> None:
    transcript = Transcript([segment(" a\n\n \nb", 0.0, 1.0)], 1.0, "en")
    assert plain_body(transcript, TranscriptFormat.SRT) == "1\n00:00:00,000 --> 00:00:01,000\na\nb\n\n"


def test_verbose_body_has_all_of_a_segment() -> None:
    body = verbose_body(TRANSCRIPT)
    assert {name: value for name, value in body.items() if name != "segments"} == {
        "task": "transcribe",
        "language": "german",
        "duration": 3662.01,
        "text": "Hi a --> b",
        "usage": {"type": "duration", "seconds": 3663},
    }
    assert body["segments"][1] == {
        "id": 1,
        "seek": 366000,
        "start": 3661.04,
        "end": 3662.0,
        "text": " a --> b ",
        "tokens": [1000, *map(ord, " a --> b "), 1001],
        "temperature": 0.2,
        "avg_logprob": -0.25,
        "compression_ratio": 1.5,
        "no_speech_prob": 0.125,
    }
    assert TranscriptionVerbose.model_validate(body, strict=True).segments


def test_a_translation_is_in_english() -> None:
    body = verbose_body(Transcript([], 2.0, "de", is_translated=True))
    assert (body["task"], body["language"]) == ("translate", "english")


def test_json_has_log_probabilities_on_demand() -> None:
    body = {"text": "Hi a --> b", "usage": {"type": "duration", "seconds": 3663}}
    assert json_body(TRANSCRIPT) == body | {"languages": [{"code": "de"}]}
    assert json_body(replace(TRANSCRIPT, language=None)) == body | {"languages": []}
    assert json_body(replace(TRANSCRIPT, is_translated=True)) == body
    found = json_body(Transcript(TRANSCRIPT.segments[:1], 1.5, "en"), lambda token: bytes([token]))
    assert found["logprobs"] == [
        {"token": character, "bytes": [ord(character)], "logprob": -0.5} for character in " Hi"
    ]


@pytest.mark.parametrize("texts", [[" a", " b "], ["  ", " a ", "b"], ["a\n", "\n", " b", " "], [], [" "]])
def test_pieces_of_a_stream_are_the_whole_text(texts: list[str]) -> None:
    deltas = TextDeltas()
    pieces = [deltas.add(text) for text in texts]
    assert "".join(pieces) == deltas.text == "".join(texts).strip()


def test_every_language_has_a_name() -> None:
    assert len(LANGUAGE_NAMES) == 100
    assert (language_name("ht"), language_name("yue"), language_name("xx")) == ("haitian creole", "cantonese", "xx")
