"""Haystack's component for recordings."""

from haystack.utils import Secret
from haystack_integrations.components.audio.whisper import RemoteWhisperTranscriber

from _clients.programs.checks import RECORDING, SPEECH_MODEL, TRANSCRIPT, URL, check, equal, run


@check("RemoteWhisperTranscriber")
def _transcriber() -> None:
    transcriber = RemoteWhisperTranscriber(
        api_key=Secret.from_token("none"), model=SPEECH_MODEL, api_base_url=f"{URL}/v1", temperature=0
    )
    (document,) = transcriber.run(sources=[RECORDING])["documents"]
    equal(document.content, TRANSCRIPT)


run()
