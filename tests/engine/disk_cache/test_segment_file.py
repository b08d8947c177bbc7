"""Files of segments: what was written is read, and whatever else lies there is refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from genai_server.engine.disk_cache.segment_file import (
    ArrayLayout,
    UnusableSegment,
    read_segment,
    root_key,
    segment_key,
    write_segment,
)

TOKENS = [5, 6, 7, 2_000_000]
LAYOUT = [ArrayLayout((2, 4, 3), np.float32), ArrayLayout((2, 4, 3), np.float16)]
PARENT = root_key(None, is_long=False)


@pytest.fixture
def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(one.shape).astype(one.type) for one in LAYOUT]


@pytest.fixture
def path(tmp_path: Path, arrays: list[np.ndarray]) -> Path:
    written = tmp_path / "segment.kv"
    write_segment(written, PARENT, TOKENS, arrays)
    return written


def test_a_segment_is_read_bit_for_bit(path: Path, arrays: list[np.ndarray]) -> None:
    found = read_segment(path, PARENT, TOKENS, LAYOUT)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in arrays]
    assert [one.dtype for one in found] == [one.dtype for one in arrays]


def test_only_its_user_may_read_a_segment(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_existing_file_is_not_overwritten(path: Path, arrays: list[np.ndarray]) -> None:
    with pytest.raises(FileExistsError):
        write_segment(path, PARENT, TOKENS, arrays)


@pytest.mark.parametrize(
    ("parent", "tokens"),
    [(PARENT, [5, 6, 7, 8]), (PARENT, [5, 6, 7]), (segment_key(PARENT, [1]), TOKENS)],
    ids=["another token", "fewer tokens", "another prefix"],
)
def test_a_segment_of_other_tokens_is_refused(path: Path, parent: str, tokens: list[int]) -> None:
    with pytest.raises(UnusableSegment, match="other tokens"):
        read_segment(path, parent, tokens, LAYOUT)


def test_every_changed_byte_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(UnusableSegment):
            read_segment(path, PARENT, TOKENS, LAYOUT)


def test_every_shorter_or_longer_file_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UnusableSegment):
            read_segment(path, PARENT, TOKENS, LAYOUT)
    path.write_bytes(whole + b"x")
    with pytest.raises(UnusableSegment, match="length"):
        read_segment(path, PARENT, TOKENS, LAYOUT)


def test_another_layout_is_refused(path: Path) -> None:
    with pytest.raises(UnusableSegment, match="length"):
        read_segment(path, PARENT, TOKENS, LAYOUT[:1])


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.kv"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        read_segment(link, PARENT, TOKENS, LAYOUT)


def test_a_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnusableSegment, match="another user"):
        read_segment(path, PARENT, TOKENS, LAYOUT)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.kv")
    with pytest.raises(UnusableSegment, match="regular"):
        read_segment(tmp_path / "pipe.kv", PARENT, TOKENS, LAYOUT)


def test_keys_depend_on_salt_rope_and_tokens() -> None:
    keys = {root_key(salt, is_long=is_long) for salt in (None, "", "a", "b") for is_long in (False, True)}
    assert len(keys) == 8
    assert len({segment_key(key, tokens) for key in keys for tokens in ([1], [2], [1, 2])}) == 24
