"""The recording that clients send, and its text as the server returns it to a plain request."""

from __future__ import annotations

from pathlib import Path

import httpx

_REPOSITORY = Path(__file__).resolve().parents[2]
SPEECH_DIRECTORY = _REPOSITORY / "models" / "demo-speech"
SPEECH_MODEL = "speech"
RECORDING = _REPOSITORY / "tests" / "recordings" / "book.wav"
_SECONDS = 60.0


def transcript(url: str) -> str:
    """The recording's text. Raises ValueError if the server returns none."""
    try:
        with RECORDING.open("rb") as file:
            response = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": file}, timeout=_SECONDS)
        text = str(response.raise_for_status().json()["text"])
    except httpx.HTTPError as error:
        raise ValueError(f"the server does not transcribe: {error}") from None
    if not text:
        raise ValueError("the server returns no text")
    return text


def environment(url: str) -> dict[str, str]:
    """What programs of clients read of the recording and its model."""
    return {
        "CHECKED_SPEECH_MODEL": SPEECH_MODEL,
        "CHECKED_RECORDING": str(RECORDING),
        "CHECKED_TRANSCRIPT": transcript(url),
    }
