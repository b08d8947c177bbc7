"""Recordings without FFmpeg's libraries."""

import importlib.util
from collections.abc import Iterator

import pytest

from genai_server.errors import TaskUnsupported
from genai_server.media.audio import decoder_library


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    decoder_library.is_installed.cache_clear()
    yield
    decoder_library.is_installed.cache_clear()


def test_recording_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TaskUnsupported, match="without the extra audio") as refused:
        decoder_library.require_decoder("messages[0].content[1].input_audio.data")
    assert refused.value.param == "messages[0].content[1].input_audio.data"


def test_installed_extra_decodes() -> None:
    decoder_library.require_decoder("file")
