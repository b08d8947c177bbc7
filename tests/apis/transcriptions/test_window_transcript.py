"""How a window is transcribed: what the model is asked, and when it is asked again."""

import math
from collections.abc import Iterator

import pytest

from genai_server.apis.transcriptions.windows import TranscriptTask, WindowTranscriber
from genai_server.generation.engine_requests import EngineAnswer
from genai_server.messages.generation_request import Alignment, GenerationRequest
from genai_server.text.codec import TextCodec
from tests.apis.transcriptions.doubles import MODEL, HeldRequests, answer, at, held_window, load_codec, scores

WINDOW = held_window(0.0, 30.0)
GOOD, BAD = -0.1, -2.0


@pytest.fixture(scope="module")
def codec() -> Iterator[TextCodec]:
    codec = load_codec()
    yield codec
    codec.close()


def task(
    *, temperature: float = 0.0, language: str = "de", translates: bool = False, shows: bool = False
) -> TranscriptTask:
    return TranscriptTask(language, translates, temperature, shows)


def transcriber(codec: TextCodec, requests: HeldRequests, salt: str | None = None) -> WindowTranscriber:
    base = GenerationRequest("name", [], 0, MODEL.context_length, cache_salt=salt, priority=3, unique_id="own")
    return WindowTranscriber(MODEL, codec, requests, base)  # type: ignore[arg-type]


def words(codec: TextCodec, text: str, logprob: float = GOOD) -> EngineAnswer:
    return answer([at(0), *codec.tokenizer.encode(text), at(2)], logprob)


@pytest.mark.anyio
async def test_the_prompt_has_language_and_task(codec: TextCodec) -> None:
    for translates, wanted in ((False, MODEL.transcribe), (True, MODEL.translate)):
        requests = HeldRequests(words(codec, " hi"))
        found = await transcriber(codec, requests).transcribe(WINDOW, [], task(translates=translates))
        assert (found.text, found.temperature, found.no_speech_prob) == ("hi", 0.0, 0.0)
        (asked,) = requests.asked
        assert asked.prompt == [MODEL.start_of_transcript, MODEL.languages["de"], wanted]
        assert (asked.priority, asked.unique_id, asked.request_id) == (3, "own", "name")
        assert asked.transcript is not None
        assert asked.transcript.max_first == 50
        assert asked.max_tokens == MODEL.context_length // 2


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_an_english_model_gets_no_task(codec: TextCodec) -> None:
    requests = HeldRequests(words(codec, " hi"))
    await transcriber(codec, requests).transcribe(WINDOW, [], task(language=""))
    assert requests.asked[0].prompt == [MODEL.start_of_transcript]


@pytest.mark.anyio
async def test_earlier_text_precedes_in_half_of_the_context(codec: TextCodec) -> None:
    for num_tokens in (1, 5, 63, 64, 500):
        requests = HeldRequests(words(codec, " hi"))
        previous = [number % 200 for number in range(num_tokens)]
        await transcriber(codec, requests).transcribe(WINDOW, previous, task())
        prompt = requests.asked[0].prompt
        kept = previous[-63:]
        assert prompt[: len(kept) + 2] == [MODEL.start_of_previous, *kept, MODEL.start_of_transcript]
        assert len(prompt) + requests.asked[0].max_tokens <= MODEL.context_length


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_improbable_text_is_tried_with_higher_temperatures(codec: TextCodec) -> None:
    requests = HeldRequests(
        words(codec, " a", BAD), scores(no_speech=-5.0), words(codec, " b", BAD), words(codec, " c")
    )
    found = await transcriber(codec, requests).transcribe(WINDOW, [], task())
    assert (found.text, found.temperature) == ("c", 0.4)
    assert [request.sampling.temperature for request in requests.asked] == [0.0, 0.0, 0.2, 0.4]


@pytest.mark.anyio
async def test_attempts_have_seeds_of_their_own_that_stay_the_same(codec: TextCodec) -> None:
    seeds = []
    for window in (WINDOW, WINDOW, held_window(3.0, 9.0)):
        requests = HeldRequests(words(codec, " no" * 40), words(codec, " no" * 40), words(codec, " yes"))
        await transcriber(codec, requests).transcribe(window, [], task())
        seeds.append([request.sampling.seed for request in requests.asked])
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 6


@pytest.mark.anyio
async def test_repetition_is_tried_with_higher_temperatures(codec: TextCodec) -> None:
    requests = HeldRequests(words(codec, " no" * 40), words(codec, " yes"))
    found = await transcriber(codec, requests).transcribe(WINDOW, [], task())
    assert (found.text, found.temperature) == ("yes", 0.2)


@pytest.mark.anyio
async def test_the_last_temperature_is_accepted_whatever_it_gives(codec: TextCodec) -> None:
    attempts = [words(codec, " a", BAD) for _ in range(6)]
    requests = HeldRequests(attempts[0], scores(no_speech=-5.0), *attempts[1:])
    found = await transcriber(codec, requests).transcribe(WINDOW, [], task())
    assert (found.text, found.temperature) == ("a", 1.0)
    assert found.avg_logprob < -1


@pytest.mark.anyio
async def test_a_given_temperature_is_the_first(codec: TextCodec) -> None:
    requests = HeldRequests(
        words(codec, " a", BAD), scores(no_speech=-5.0), words(codec, " b", BAD), words(codec, " c")
    )
    await transcriber(codec, requests).transcribe(WINDOW, [], task(temperature=0.7))
    assert [request.sampling.temperature for request in requests.asked] == [0.7, 0.0, 0.8, 1.0]


@pytest.mark.anyio
async def test_improbable_text_without_speech_is_silence(codec: TextCodec) -> None:
    requests = HeldRequests(words(codec, " thanks", BAD), scores(no_speech=math.log(0.7)))
    found = await transcriber(codec, requests).transcribe(WINDOW, [1, 2], task())
    assert found.is_silent
    assert found.no_speech_prob == pytest.approx(0.7)
    question = requests.asked[1]
    assert question.prompt == [MODEL.start_of_previous, 1, 2, MODEL.start_of_transcript]
    assert (question.max_tokens, question.scored_tokens, question.transcript) == (1, [MODEL.no_speech], None)


@pytest.mark.anyio
async def test_probable_text_is_no_silence(codec: TextCodec) -> None:
    requests = HeldRequests(scores(no_speech=math.log(0.9)), words(codec, " thanks"))
    found = await transcriber(codec, requests).transcribe(WINDOW, [], task(shows=True))
    assert not found.is_silent
    assert found.no_speech_prob == pytest.approx(0.9)


@pytest.mark.anyio
async def test_the_most_probable_language_is_detected(codec: TextCodec) -> None:
    requests = HeldRequests(scores(en=-3.0, de=-1.5, es=-2.0))
    assert await transcriber(codec, requests).detect_language(WINDOW) == "de"
    (asked,) = requests.asked
    assert asked.prompt == [MODEL.start_of_transcript]
    assert asked.scored_tokens == list(MODEL.languages.values())
    assert (asked.max_tokens, asked.top_logprobs) == (1, 0)
    among = HeldRequests(scores(en=-3.0, es=-2.0))
    assert await transcriber(codec, among).detect_language(WINDOW, ["en", "es"]) == "es"
    assert among.asked[0].scored_tokens == [MODEL.languages["en"], MODEL.languages["es"]]


@pytest.mark.anyio
async def test_timestamps_and_marks_are_no_text(codec: TextCodec) -> None:
    found = transcriber(codec, HeldRequests())
    tokens = [at(0), *codec.tokenizer.encode(" hi"), MODEL.end_of_text, MODEL.no_speech, at(1500 / 50)]
    assert found.text(tokens) == " hi"
