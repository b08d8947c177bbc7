"""How a window is transcribed: what the model is asked, and when it is asked again."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from genai_server.apis.transcriptions.windows import TranscriptTask, WindowTranscriber, WindowTranscript
from genai_server.generation.engine_requests import EngineAnswer
from genai_server.messages.generation_request import Alignment, GenerationRequest
from genai_server.text.codec import TextCodec
from tests.apis.transcriptions.doubles import MODEL, HeldRequests, answer, at, held_window, scores

pytestmark = pytest.mark.anyio
WINDOW = held_window(0.0, 30.0)
GOOD, BAD = -0.1, -2.0


def task(
    *, temperature: float = 0.0, language: str = "de", translates: bool = False, shows: bool = False
) -> TranscriptTask:
    return TranscriptTask(language, translates, temperature, shows)


def transcriber(codec: TextCodec, requests: HeldRequests, salt: str | None = None) -> WindowTranscriber:
    base = GenerationRequest("name", [], 0, MODEL.context_length, cache_salt=salt, priority=3, unique_id="own")
    return WindowTranscriber(MODEL, codec, requests, base)  # type: ignore[arg-type]


def words(codec: TextCodec, text: str, logprob: float = GOOD) -> EngineAnswer:
    return answer([at(0), *codec.tokenizer.encode(text), at(2)], logprob)


async def transcribe(
    codec: TextCodec, *answers: EngineAnswer, previous: Sequence[int] = (), **choice: Any
) -> tuple[WindowTranscript, list[GenerationRequest]]:
    """What becomes of a window that the model answers so, and what the model was asked."""
    requests = HeldRequests(*answers)
    found = await transcriber(codec, requests).transcribe(WINDOW, previous, task(**choice))
    return found, requests.asked


@pytest.mark.parametrize(
    ("choice", "prompt"),
    [
        ({}, [MODEL.languages["de"], MODEL.transcribe]),
        ({"translates": True}, [MODEL.languages["de"], MODEL.translate]),
        ({"language": ""}, []),
    ],
    ids=["transcribes", "translates", "an English model"],
)
async def test_the_prompt_has_language_and_task(codec: TextCodec, choice: dict[str, Any], prompt: list[int]) -> None:
    found, (asked,) = await transcribe(codec, words(codec, " hi"), **choice)
    assert (found.text, found.temperature, found.no_speech_prob) == ("hi", 0.0, 0.0)
    assert asked.prompt == [MODEL.start_of_transcript, *prompt]
    assert (asked.priority, asked.unique_id, asked.request_id) == (3, "own", "name")
    assert asked.transcript is not None
    assert (asked.transcript.max_first, asked.max_tokens) == (50, MODEL.context_length // 2)


@pytest.mark.parametrize("language", ["de", ""])
async def test_times_are_asked_for_with_the_text_alone(codec: TextCodec, language: str) -> None:
    requests = HeldRequests(EngineAnswer([0], [], [0.5, 1.0, 1.5]))
    window = held_window(3.0, 7.5)
    found = await transcriber(codec, requests).token_times(window, [70, 80], task(language=language))
    assert found == [0.5, 1.0, 1.5]
    (asked,) = requests.asked
    start = [MODEL.start_of_transcript, *([MODEL.languages["de"], MODEL.transcribe] if language else [])]
    assert (asked.prompt, asked.max_tokens) == (start, 1)
    tokens = [*start, MODEL.no_timestamps, 70, 80, MODEL.end_of_text]
    assert asked.alignment == Alignment(tokens, len(start) + 1, 4.5)


@pytest.mark.parametrize("num_tokens", [1, 5, 63, 64, 500])
async def test_earlier_text_precedes_in_half_of_the_context(codec: TextCodec, num_tokens: int) -> None:
    previous = [number % 200 for number in range(num_tokens)]
    _, (asked,) = await transcribe(codec, words(codec, " hi"), previous=previous)
    start = [MODEL.start_of_previous, *previous[-63:], MODEL.start_of_transcript]
    assert asked.prompt[: len(start)] == start
    assert len(asked.prompt) + asked.max_tokens <= MODEL.context_length


async def test_equal_windows_share_a_sound_of_one_key_only(codec: TextCodec) -> None:
    asked = []
    for salt, window in ((None, WINDOW), (None, WINDOW), ("key", WINDOW), (None, held_window(3.0, 9.0))):
        requests = HeldRequests(words(codec, " hi"))
        await transcriber(codec, requests, salt).transcribe(window, [], task())
        asked += requests.asked
    digests = [request.sound.digest for request in asked if request.sound is not None]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    # The prefix cache would take the keys and values of another sound.
    assert [request.cache_salt for request in asked] == digests


@pytest.mark.parametrize(("given", "tried"), [(0.0, [0.0, 0.0, 0.2, 0.4]), (0.7, [0.7, 0.0, 0.8, 1.0])])
async def test_improbable_text_is_tried_with_higher_temperatures(
    codec: TextCodec, given: float, tried: list[float]
) -> None:
    answers = words(codec, " a", BAD), scores(no_speech=-5.0), words(codec, " b", BAD), words(codec, " c")
    found, asked = await transcribe(codec, *answers, temperature=given)
    assert (found.text, found.temperature) == ("c", tried[-1])
    assert [request.sampling.temperature for request in asked] == tried


async def test_attempts_have_seeds_of_their_own_that_stay_the_same(codec: TextCodec) -> None:
    seeds = []
    for window in (WINDOW, WINDOW, held_window(3.0, 9.0)):
        requests = HeldRequests(words(codec, " no" * 40), words(codec, " no" * 40), words(codec, " yes"))
        await transcriber(codec, requests).transcribe(window, [], task())
        seeds.append([request.sampling.seed for request in requests.asked])
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 6


async def test_repetition_is_tried_with_higher_temperatures(codec: TextCodec) -> None:
    found, _ = await transcribe(codec, words(codec, " no" * 40), words(codec, " yes"))
    assert (found.text, found.temperature) == ("yes", 0.2)


async def test_the_last_temperature_is_accepted_whatever_it_gives(codec: TextCodec) -> None:
    first, *others = [words(codec, " a", BAD) for _ in range(6)]
    found, _ = await transcribe(codec, first, scores(no_speech=-5.0), *others)
    assert (found.text, found.temperature, found.avg_logprob < -1) == ("a", 1.0, True)


async def test_improbable_text_without_speech_is_silence(codec: TextCodec) -> None:
    answers = words(codec, " thanks", BAD), scores(no_speech=math.log(0.7))
    found, (_, question) = await transcribe(codec, *answers, previous=[1, 2])
    assert found.is_silent
    assert found.no_speech_prob == pytest.approx(0.7)
    assert question.prompt == [MODEL.start_of_previous, 1, 2, MODEL.start_of_transcript]
    assert (question.max_tokens, question.scored_tokens, question.transcript) == (1, [MODEL.no_speech], None)


async def test_probable_text_is_no_silence(codec: TextCodec) -> None:
    found, _ = await transcribe(codec, scores(no_speech=math.log(0.9)), words(codec, " thanks"), shows=True)
    assert not found.is_silent
    assert found.no_speech_prob == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("answered", "candidates", "found"),
    [({"en": -3.0, "de": -1.5, "es": -2.0}, [], "de"), ({"en": -3.0, "es": -2.0}, ["en", "es"], "es")],
)
async def test_the_most_probable_language_is_detected(
    codec: TextCodec, answered: dict[str, float], candidates: list[str], found: str
) -> None:
    requests = HeldRequests(scores(**answered))
    assert await transcriber(codec, requests).detect_language(WINDOW, candidates) == found
    (asked,) = requests.asked
    scored = [MODEL.languages[language] for language in candidates or MODEL.languages]
    assert (asked.prompt, asked.scored_tokens) == ([MODEL.start_of_transcript], scored)
    assert (asked.max_tokens, asked.top_logprobs) == (1, 0)


async def test_timestamps_and_marks_are_no_text(codec: TextCodec) -> None:
    found = transcriber(codec, HeldRequests())
    tokens = [at(0), *codec.tokenizer.encode(" hi"), MODEL.end_of_text, MODEL.no_speech, at(1500 / 50)]
    assert found.text(tokens) == " hi"
