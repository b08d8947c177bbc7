"""Speech to text of LiveKit's agents, which send what was said between pauses."""

import asyncio
import wave

from livekit import rtc
from livekit.plugins.openai import STT

from _clients.programs.checks import RECORDING, SPEECH_MODEL, TRANSCRIPT, URL, check, equal, run


def _frame() -> rtc.AudioFrame:
    with wave.open(RECORDING) as file:
        samples = file.getnframes()
        return rtc.AudioFrame(file.readframes(samples), file.getframerate(), file.getnchannels(), samples)


def _text(**options: object) -> str:
    async def recognize() -> str:
        stt = STT(model=SPEECH_MODEL, base_url=f"{URL}/v1", api_key="none", **options)
        return str((await stt.recognize(_frame())).alternatives[0].text)

    return asyncio.run(recognize())


@check("recognize")
def _recognize() -> None:
    equal(_text(), TRANSCRIPT)


@check("recognize, the language detected")
def _detected() -> None:
    equal(_text(detect_language=True, temperature=0.0), TRANSCRIPT)


run()
