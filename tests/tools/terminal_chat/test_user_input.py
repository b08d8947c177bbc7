"""Image files of the terminal chat."""

import base64
from pathlib import Path

import pytest

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.user_input import data_url


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n rest", "image/png"),
        (b"\xff\xd8\xff\xe0 rest", "image/jpeg"),
        (b"RIFF\n\0\0\0WEBP rest", "image/webp"),
        (b"GIF89a rest", "image/gif"),
        (b"BM\x3a\0\0\0\0\0\0\0 rest", "image/bmp"),
    ],
)
def test_the_media_type_is_told_by_the_content(tmp_path: Path, content: bytes, media_type: str) -> None:
    path = tmp_path / "picture"
    path.write_bytes(content)
    assert data_url(path) == f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def test_an_image_has_at_most_20_mebibytes(tmp_path: Path) -> None:
    path = tmp_path / "big.gif"
    path.write_bytes(b"GIF89a".ljust(20 * 1024 * 1024, b"\0"))
    assert data_url(path).startswith("data:image/gif;base64,")
    path.write_bytes(b"GIF89a".ljust(20 * 1024 * 1024 + 1, b"\0"))
    with pytest.raises(ChatFailed, match="has 20971521 bytes; an image may have at most 20971520"):
        data_url(path)
