"""Recordings longer than a window: where windows begin, what precedes them, and what is left out."""

from collections.abc import Sequence
from typing import Any

import pytest

from genai_server.apis.transcriptions.routes import Transcription, TranscriptionOptions
from genai_server.apis.transcriptions.windows import Segment, WindowTranscriber
from genai_server.errors import InvalidField
from genai_server.generation.engine_requests import EngineAnswer
from genai_server.media.audio.recordings import Window
from genai_server.messages.generation_request import GenerationRequest
from genai_server.text.codec import TextCodec
from tests.apis.transcriptions.doubles import MODEL, HeldRecording, HeldRequests, answer, at, scores

pytestmark = pytest.mark.anyio
GOOD, BAD = -0.1, -2.0


def begun(
    codec: TextCodec,
    recording: HeldRecording,
    requests: HeldRequests,
    *,
    language: str | None = "en",
    candidates: Sequence[str] = (),
    prompt: Sequence[int] = (),
    has_words: bool = False,
) -> Transcription:
    base = GenerationRequest("name", [], 0, MODEL.context_length)
    transcriber = WindowTranscriber(MODEL, codec, requests, base)  # type: ignore[arg-type]
    options = TranscriptionOptions(language, candidates, list(prompt), False, 0.0, False, has_words)
    return Transcription(MODEL, recording, requests, transcriber, options)  # type: ignore[arg-type]


async def transcribed(transcription: Transcription) -> list[Segment]:
    return [segment async for segments in transcription.windows() for segment in segments]


async def test_a_window_that_cannot_be_read_is_noted(codec: TextCodec) -> None:
    class Broken(HeldRecording):
        async def window(self, start: float, **_: Any) -> Window | None:
            if start:
                raise InvalidField("file", "crashes its reader")
            return await super().window(start)

    requests = HeldRequests(answer([at(0), *codec.tokenizer.encode(" one"), at(30)]))
    with pytest.raises(InvalidField):
        await transcribed(begun(codec, Broken(40.0), requests))
    assert requests.noted == ["invalid_value"]


async def test_text_before_precedes_the_next_window(codec: TextCodec) -> None:
    encode = codec.tokenizer.encode
    first = [at(0), *encode(" one"), at(20), at(20), *encode(" tw")]
    requests = HeldRequests(answer(first), answer([at(0), *encode(" two"), at(9)]))
    recording = HeldRecording(40.0)
    found = await transcribed(begun(codec, recording, requests, prompt=[5, 6]))
    assert [segment.text for segment in found] == [" one", " two"]
    assert [round(segment.start, 3) for segment in found] == [0.0, 20.0]
    assert recording.asked == [0.0, 20.0]
    assert requests.asked[0].prompt[:3] == [MODEL.start_of_previous, 5, 6]
    kept = [5, 6, at(0), *encode(" one"), at(20)]
    assert requests.asked[1].prompt[: len(kept) + 1] == [MODEL.start_of_previous, *kept]


async def test_a_high_temperature_forgets_the_text_before(codec: TextCodec) -> None:
    def said(text: str, logprob: float = GOOD) -> EngineAnswer:
        return answer([at(0), *codec.tokenizer.encode(text), at(9)], logprob)

    tried = [said(" a", BAD), scores(no_speech=-9.0), said(" a", BAD), said(" a", BAD), said(" b")]
    requests = HeldRequests(*tried, said(" c"))
    found = await transcribed(begun(codec, HeldRecording(50.0), requests, prompt=[5]))
    assert [segment.temperature for segment in found] == [0.6, 0.0]
    assert requests.asked[-1].prompt[0] == MODEL.start_of_transcript


async def test_silence_is_left_out(codec: TextCodec) -> None:
    encode = codec.tokenizer.encode
    silent = answer([at(0), *encode(" thanks"), at(2)], BAD)
    requests = HeldRequests(
        answer([at(0), *encode(" a"), at(9)]), silent, scores(no_speech=-0.1), answer([at(0), *encode(" b"), at(5)])
    )
    recording = HeldRecording(90.0, silences=[(60.0, 70.0)])
    found = await transcribed(begun(codec, recording, requests))
    assert [(segment.text, segment.start) for segment in found] == [(" a", 0.0), (" b", 70.0)]
    # The silent window leaves the text before it.
    assert requests.asked[-1].prompt[0] == MODEL.start_of_previous
    assert recording.asked == [0.0, 30.0, 60.0]


async def test_a_recording_without_speech_has_no_text(codec: TextCodec) -> None:
    requests = HeldRequests()
    transcription = begun(codec, HeldRecording(5.0, silences=[(0.0, 5.0)]), requests, language=None)
    assert await transcribed(transcription) == []
    assert transcription.language is None
    assert requests.is_finished


async def test_words_have_times_within_the_recording(codec: TextCodec) -> None:
    encode = codec.tokenizer.encode
    one, two, three = encode(" One,"), encode(" two."), encode(" three")
    requests = HeldRequests(
        answer([at(0), *one, *two, at(5), at(6), *three, at(9), at(9), *encode(" cut")]),
        EngineAnswer([0], [], [0.5 * number for number in range(len([*one, *two, *three]) + 1)]),
        answer([at(0), *encode(" end"), at(2)]),
        EngineAnswer([0], [], [*[0.0] * len(encode(" end")), 90.0]),
    )
    transcription = begun(codec, HeldRecording(12.0, length=10.0), requests, has_words=True)
    segments = await transcribed(transcription)
    words = [[word.text for word in segment.words] for segment in segments]
    assert words == [["One", "two"], ["three"], ["end"]]
    asked = requests.asked[1].alignment
    assert asked is not None
    # Neither timestamps nor text that is left to the next window.
    assert asked.tokens[asked.num_before : -1] == [*one, *two, *three]
    (first, second), (third,), (last,) = (segment.words for segment in segments)
    assert 0.0 <= first.start < first.end <= 0.5 * len(one) <= second.start < second.end
    assert third.start >= 5.5
    # The second window begins at 9 s, and its segment ends after 2 s.
    assert (last.start, last.end) == (9.0, 11.0)


async def test_the_language_is_detected_once(codec: TextCodec) -> None:
    texts = [answer([at(0), *codec.tokenizer.encode(text), at(9)]) for text in (" a", " b")]
    requests = HeldRequests(scores(en=-5.0, de=-1.0, es=-2.0), *texts)
    transcription = begun(codec, HeldRecording(50.0), requests, language=None)
    assert len(await transcribed(transcription)) == 2
    assert transcription.language == "de"
    assert MODEL.languages["de"] in requests.asked[2].prompt


async def test_segments_without_a_text_or_a_time_are_left_out_and_none_ends_after_its_window(codec: TextCodec) -> None:
    encode = codec.tokenizer.encode
    tokens = [at(0), *encode(" "), at(2), at(2), *encode(" a"), at(2), at(2), *encode(" b"), at(29)]
    (segment,) = await transcribed(begun(codec, HeldRecording(4.0), HeldRequests(answer(tokens))))
    assert (segment.text, segment.start, segment.end) == (" b", 2.0, 4.0)
