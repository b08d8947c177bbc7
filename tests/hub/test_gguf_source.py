"""GGUF files as sources: which one is meant, and the part of a remote one that describes the model."""

import sys
from pathlib import Path

import pytest

from genai_server.errors import ConfigurationError, ExportFailed
from genai_server.hub import gguf_source
from genai_server.hub.client import Hub
from genai_server.hub.repository import select_gguf
from tests.local_hub import HubRepository, run_hub

_WRITE = 10 * 1024 * 1024  # huggingface_hub's


def test_the_only_gguf_file_of_a_directory_is_found(tmp_path: Path) -> None:
    assert gguf_source.find_gguf(tmp_path) is None
    (tmp_path / "a.gguf").touch()
    assert gguf_source.find_gguf(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ConfigurationError, match="several GGUF files"):
        gguf_source.find_gguf(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert gguf_source.find_gguf(tmp_path) is None


def test_the_beginning_of_a_remote_file_stands_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_source, "_BEGINNING", _WRITE)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    content = b"G" * (3 * _WRITE)
    with run_hub() as local:
        local.repositories["org/name"] = HubRepository({"big/a.gguf": content, "b.gguf": b"small"})
        hub = Hub(None, local.url)
        repository = hub.repository("org/name", None)
        for pattern, expected in (("*a.gguf", content), ("b.gguf", b"small")):
            file = select_gguf(repository, [pattern])
            assert file is not None
            found = gguf_source.fetch_beginning(hub, repository, file, tmp_path).read_bytes()
            assert len(found) == len(expected)
            assert found.rstrip(b"\0") == expected[:_WRITE]


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
def test_a_program_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho out of memory\nexit 9\n", encoding="utf-8")
    broken.chmod(0o755)
    with pytest.raises(ExportFailed, match="status 9") as caught:
        gguf_source.unpack(tmp_path / "a.gguf", tmp_path / "out", broken, {}, lambda _: None)
    assert caught.value.message.endswith("out of memory")
