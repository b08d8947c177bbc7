"""The tokenizer of the speech model."""

from collections.abc import Iterator

import pytest

from genai_server.text.codec import TextCodec
from tests.apis.transcriptions.doubles import load_codec


@pytest.fixture(scope="module")
def codec() -> Iterator[TextCodec]:
    codec = load_codec()
    yield codec
    codec.close()
