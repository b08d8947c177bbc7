"""The models that clients talk to, and the picture and the recording that they send."""

from __future__ import annotations

import base64
import io

import httpx
from _load.server import DEMO, REPOSITORY
from PIL import Image

# The settings of the server whose model does what prompts say.
SCRIPTED = {
    "GENAI_DEVICE": "scripted",
    # A token is a byte, and the first prompt of a coding agent has 120,000.
    "GENAI_MAX_LENGTH": "1000000",
    "GENAI_MAX_QUEUE_TOKENS": "2000000",
    "GENAI_MAX_BODY_BYTES": "16000000",
}
IMAGES_MODEL, EMBEDDINGS_MODEL, SPEECH_MODEL = "pictures", "vectors", "speech"
# The settings of another server. Its model for images comes from the tests, and its answers have no meaning.
MODELS = {
    "GENAI_MODELS": (
        f"{IMAGES_MODEL}={REPOSITORY}/tests/built_models/qwen-3-vl-images,{EMBEDDINGS_MODEL}={DEMO}-embeddings,"
        f"scores={DEMO}-reranker,{SPEECH_MODEL}={DEMO}-speech"
    ),
    # Each client uses one or two of them, which are loaded when it names them.
    "GENAI_MAX_MODELS": "1",
}
RECORDING = REPOSITORY / "tests" / "recordings" / "book.wav"
_SIDE = 256
# The model has a token for 32 by 32 pixels, and one before and after the image.
TOKENS = (_SIDE // 32) ** 2 + 2


def png() -> bytes:
    """A PNG in one colour."""
    file = io.BytesIO()
    Image.new("RGB", (_SIDE, _SIDE), (200, 50, 50)).save(file, "PNG")
    return file.getvalue()


def transcript(url: str) -> str:
    """The recording's text, as the server returns it to a plain request. Raises ValueError if it returns none."""
    try:
        with RECORDING.open("rb") as file:
            response = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": file}, timeout=60)
        return str(response.raise_for_status().json()["text"])
    except httpx.HTTPError as error:
        raise ValueError(f"the server does not transcribe: {error}") from None


def variables(models_url: str) -> dict[str, str]:
    """What programs of clients read of the picture, the recording and their models."""
    return {
        "CHECKED_MODELS_URL": models_url,
        "CHECKED_IMAGES_MODEL": IMAGES_MODEL,
        "CHECKED_PICTURE": base64.b64encode(png()).decode(),
        "CHECKED_PICTURE_TOKENS": str(TOKENS),
        "CHECKED_SPEECH_MODEL": SPEECH_MODEL,
        "CHECKED_RECORDING": str(RECORDING),
    }
