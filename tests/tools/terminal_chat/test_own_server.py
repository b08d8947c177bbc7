"""The server that a chat starts for itself."""

from pathlib import Path

import pytest

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.chat_command import own_server
from tests.running_server import DEMO

KEY = "chat:key-of-this-test"


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_failed_load_is_reported_with_its_reason(log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENAI_DEVICE", "openvino")
    monkeypatch.setenv("GENAI_LOG_FORMAT", log_format)
    with pytest.raises(ChatFailed) as raised, own_server(DEMO, KEY):
        pass
    said = str(raised.value)
    assert said.count("model demo on device openvino cannot be loaded: ") == 1
    assert "Shutting down" not in said


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChatFailed, match=str(tmp_path / "none")), own_server(tmp_path / "none", KEY):
        pass
