"""Transcriptions and translations with OpenAI's Python SDK."""

import asyncio
import re
from pathlib import Path
from typing import Any

import openai

from _clients.programs.checks import RECORDING, SPEECH_MODEL, TRANSCRIPT, URL, check, equal, run

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
ASKED: Any = {"model": SPEECH_MODEL, "file": Path(RECORDING)}


@check("transcription")
def _transcription() -> None:
    answer = client.audio.transcriptions.create(**ASKED)
    equal(answer.text, TRANSCRIPT)
    equal((answer.usage.type, answer.usage.seconds), ("duration", 2.0))


@check("async")
def _async() -> None:
    async def text() -> str:
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as several:
            return str((await several.audio.transcriptions.create(**ASKED)).text)

    equal(asyncio.run(text()), TRANSCRIPT)


@check("stream")
def _stream() -> None:
    events = list(client.audio.transcriptions.create(**ASKED, stream=True))
    *deltas, done = events
    equal({event.type for event in deltas}, {"transcript.text.delta"})
    equal("".join(event.delta for event in deltas), TRANSCRIPT)
    equal((done.type, done.text), ("transcript.text.done", TRANSCRIPT))


@check("logprobs")
def _logprobs() -> None:
    answer = client.audio.transcriptions.create(**ASKED, include=["logprobs"])
    equal("".join(each.token for each in answer.logprobs).strip(), TRANSCRIPT)


@check("verbose_json")
def _verbose() -> None:
    answer = client.audio.transcriptions.create(
        **ASKED, response_format="verbose_json", timestamp_granularities=["segment"]
    )
    equal((answer.text, answer.language), (TRANSCRIPT, "english"))
    equal("".join(segment.text for segment in answer.segments).strip(), TRANSCRIPT)
    equal(0 <= answer.segments[0].start < answer.segments[-1].end <= answer.duration, True)


@check("times of words")
def _words() -> None:
    answer = client.audio.transcriptions.create(
        **ASKED, response_format="verbose_json", timestamp_granularities=["word"]
    )
    equal([word.word for word in answer.words], re.findall(r"[\w']+", TRANSCRIPT))
    times = [time for word in answer.words for time in (word.start, word.end)]
    equal(times, sorted(times))
    equal(0 <= times[0] < times[-1] <= answer.duration, True)


@check("text, srt, vtt")
def _formats() -> None:
    equal(client.audio.transcriptions.create(**ASKED, response_format="text").strip(), TRANSCRIPT)
    for form in ("srt", "vtt"):
        equal(TRANSCRIPT in client.audio.transcriptions.create(**ASKED, response_format=form), True)


@check("translation")
def _translation() -> None:
    equal(bool(client.audio.translations.create(**ASKED).text), True)


@check("errors")
def _errors() -> None:
    try:
        client.audio.transcriptions.create(**ASKED, language="tlh")
    except openai.BadRequestError as error:
        equal(error.param, "language")
    else:
        raise AssertionError("an unknown language was transcribed")


run()
