"""litellm's transcriptions."""

import asyncio
from pathlib import Path

import litellm

from _clients.programs.checks import RECORDING, SPEECH_MODEL, TRANSCRIPT, URL, check, equal, recipe, run

transcription = recipe()["transcription"]


@check("transcription")
def _transcription() -> None:
    with Path(RECORDING).open("rb") as file:
        equal(transcription(file=file).text, TRANSCRIPT)


@check("verbose_json")
def _verbose() -> None:
    with Path(RECORDING).open("rb") as file:
        answer = transcription(file=file, response_format="verbose_json", timestamp_granularities=["segment"])
    equal("".join(segment["text"] for segment in answer["segments"]).strip(), TRANSCRIPT)


@check("atranscription as vLLM")
def _async() -> None:
    with Path(RECORDING).open("rb") as file:
        model = f"hosted_vllm/{SPEECH_MODEL}"
        answer = asyncio.run(litellm.atranscription(model, file, api_base=f"{URL}/v1", api_key="none"))
    equal(answer.text, TRANSCRIPT)


run()
