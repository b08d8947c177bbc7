"""The picture and the recording that clients send, and what the models for these make of them."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import httpx
from PIL import Image

IMAGES_MODEL, SPEECH_MODEL = "pictures", "speech"
_REPOSITORY = Path(__file__).resolve().parents[2]
SPEECH_DIRECTORY = _REPOSITORY / "models" / "demo-speech"
RECORDING = _REPOSITORY / "tests" / "recordings" / "book.wav"
_SIDE = 256
# The model has a token for 32 by 32 pixels, and one before and after the image.
TOKENS = (_SIDE // 32) ** 2 + 2
_SECONDS = 60.0


def png() -> bytes:
    """A PNG in one colour."""
    file = io.BytesIO()
    Image.new("RGB", (_SIDE, _SIDE), (200, 50, 50)).save(file, "PNG")
    return file.getvalue()


def transcript(url: str) -> str:
    """The recording's text, as the server returns it to a plain request. Raises ValueError if it returns none."""
    try:
        with RECORDING.open("rb") as file:
            response = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": file}, timeout=_SECONDS)
        text = str(response.raise_for_status().json()["text"])
    except httpx.HTTPError as error:
        raise ValueError(f"the server does not transcribe: {error}") from None
    if not text:
        raise ValueError("the server returns no text")
    return text


def of_pictures(images_url: str) -> dict[str, str]:
    """What programs of clients read of the picture and its model."""
    return {
        "CHECKED_IMAGES_URL": images_url,
        "CHECKED_IMAGES_MODEL": IMAGES_MODEL,
        "CHECKED_PICTURE": base64.b64encode(png()).decode(),
        "CHECKED_PICTURE_TOKENS": str(TOKENS),
    }


def of_speech(url: str) -> dict[str, str]:
    """What programs of clients read of the recording and its model."""
    return {
        "CHECKED_SPEECH_MODEL": SPEECH_MODEL,
        "CHECKED_RECORDING": str(RECORDING),
        "CHECKED_TRANSCRIPT": transcript(url),
    }
