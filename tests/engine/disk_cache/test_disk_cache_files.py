"""Files of segments: what was written is read, and whatever else lies there is refused."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from genai_server.engine.disk_cache_files import (
    ArrayLayout,
    Segment,
    SegmentFolder,
    UnusableSegment,
    clear,
    read_segment,
    root_key,
    segment_key,
    stored_models,
    write_segment,
)
from tests.hand_clock import HandClock

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


def test_a_segment_is_read_bit_for_bit_by_its_user_only(path: Path, arrays: list[np.ndarray]) -> None:
    found = read_segment(path, PARENT, TOKENS, LAYOUT)
    assert [(one.tobytes(), one.dtype) for one in found] == [(one.tobytes(), one.dtype) for one in arrays]
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_existing_file_is_not_overwritten(path: Path, arrays: list[np.ndarray]) -> None:
    with pytest.raises(FileExistsError):
        write_segment(path, PARENT, TOKENS, arrays)


@pytest.mark.parametrize(
    ("parent", "tokens", "layout", "message"),
    [
        pytest.param(PARENT, [5, 6, 7, 8], LAYOUT, "other tokens", id="another token"),
        pytest.param(PARENT, [5, 6, 7], LAYOUT, "other tokens", id="fewer tokens"),
        pytest.param(segment_key(PARENT, [1]), TOKENS, LAYOUT, "other tokens", id="another prefix"),
        pytest.param(PARENT, TOKENS, LAYOUT[:1], "length", id="another layout"),
    ],
)
def test_a_segment_of_other_tokens_or_another_layout_is_refused(
    path: Path, parent: str, tokens: list[int], layout: list[ArrayLayout], message: str
) -> None:
    with pytest.raises(UnusableSegment, match=message):
        read_segment(path, parent, tokens, layout)


def test_every_changed_byte_and_every_other_length_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    flipped = (whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :] for place in range(len(whole)))
    for content in (*flipped, *(whole[:length] for length in range(len(whole))), whole + b"x"):
        path.write_bytes(content)
        with pytest.raises(UnusableSegment):
            read_segment(path, PARENT, TOKENS, LAYOUT)


def test_neither_a_link_nor_a_pipe_is_read(path: Path, tmp_path: Path) -> None:
    link, pipe = tmp_path / "link.kv", tmp_path / "pipe.kv"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        read_segment(link, PARENT, TOKENS, LAYOUT)
    os.mkfifo(pipe)
    with pytest.raises(UnusableSegment, match="regular"):
        read_segment(pipe, PARENT, TOKENS, LAYOUT)


def test_a_file_of_another_user_is_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnusableSegment, match="another user"):
        read_segment(path, PARENT, TOKENS, LAYOUT)
    with pytest.raises(PermissionError, match="another user"):
        SegmentFolder(tmp_path, "model-a", 100 * BYTES)


def test_keys_depend_on_salt_rope_and_tokens() -> None:
    keys = {root_key(salt, is_long=is_long) for salt in (None, "", "a", "b") for is_long in (False, True)}
    assert len(keys) == 8
    assert len({segment_key(key, tokens) for key in keys for tokens in ([1], [2], [1, 2])}) == 24


ROOT = root_key(None, is_long=False)
FULL = 4
# Of one token. The files of the tests have less than twice as many bytes besides.
BYTES = 1000
PROMPT = list(range(100, 120))


def layout(num_tokens: int) -> list[ArrayLayout]:
    return [ArrayLayout((num_tokens, BYTES), np.uint8)]


def segments(tokens: list[int], lengths: tuple[int, ...], root: str = ROOT) -> list[Segment]:
    """The segments of a prefix of these lengths."""
    found, parent, start = [], root, 0
    for length in lengths:
        key = segment_key(parent, tokens[start : start + length])
        found.append(Segment(parent, length, key))
        parent, start = key, start + length
    return found


def store(folder: SegmentFolder, tokens: list[int] = PROMPT, lengths: tuple[int, ...] = (FULL,)) -> list[Segment]:
    """Store a prefix whose bytes are its tokens."""
    stored, start = segments(tokens, lengths), 0
    with folder.writing(sum(lengths) * BYTES):
        for segment in stored:
            part = tokens[start : start + segment.num_tokens]
            folder.write(segment, part, [np.repeat(np.array(part, np.uint8)[:, None], BYTES, axis=1)])
            start += segment.num_tokens
    folder.touch(stored, states=False)
    return stored


def longest(
    folder: SegmentFolder, tokens: list[int] = PROMPT, *, root: str = ROOT, states: bool = False
) -> list[Segment]:
    return folder.longest(root, tokens, states=states)


@pytest.fixture
def clock(clock: HandClock) -> HandClock:
    clock.now = 1_700_000_000.0
    return clock


@pytest.fixture
def open_folder(tmp_path: Path, clock: HandClock) -> Callable[..., SegmentFolder]:
    """Opens the folder of a model, with room for this number of tokens."""
    return lambda model="model-a", room=100: SegmentFolder(tmp_path / "prefixes", model, room * BYTES, clock)


@pytest.fixture
def folder(open_folder: Callable[..., SegmentFolder]) -> SegmentFolder:
    return open_folder()


def test_the_longest_stored_prefix_is_found(folder: SegmentFolder) -> None:
    stored = store(folder, lengths=(FULL, FULL, FULL))
    assert longest(folder) == stored
    assert longest(folder, PROMPT[:11]) == stored[:2]
    assert longest(folder, [*PROMPT[:6], 1, *PROMPT[7:]]) == stored[:1]
    assert longest(folder, [1, *PROMPT[1:]]) == []
    assert longest(folder, root=root_key("salt", is_long=False)) == []


def test_a_prefix_with_states_ends_where_they_are(folder: SegmentFolder) -> None:
    full = store(folder, lengths=(FULL, FULL, FULL))
    part = store(folder, lengths=(FULL, FULL, 2))[-1]
    assert longest(folder, states=True) == []
    for number, (key, found) in enumerate([(part.key, [*full[:2], part]), (full[2].key, full)], 1):
        with folder.writing(BYTES):
            folder.write_states(key, [np.full(3, number, np.float32)])
        assert longest(folder, states=True) == found
    states = folder.read_states(full[2].key, [ArrayLayout((3,), np.float32)])
    assert states is not None
    assert states[0].tolist() == [2, 2, 2]


def test_another_engine_finds_what_one_stores(folder: SegmentFolder, open_folder: Callable[..., SegmentFolder]) -> None:
    other, foreign = open_folder(), open_folder("model-b")
    assert longest(other) == []
    stored = store(folder)
    assert (longest(other), longest(foreign)) == (stored, [])
    found = other.read(stored[0], PROMPT[:FULL], layout(FULL))
    assert found is not None
    assert found[0][:, 0].tolist() == PROMPT[:FULL]


def test_the_least_recently_used_is_removed_first(open_folder: Callable[..., SegmentFolder], clock: HandClock) -> None:
    folder = open_folder(room=14)
    first, second = list(range(8)), list(range(50, 58))
    kept = store(folder, first, (FULL, FULL))
    clock.wait(10)
    store(folder, second)
    clock.wait(10)
    folder.touch(kept, states=False)
    clock.wait(10)
    store(folder, list(range(80, 84)))
    assert (longest(folder, first), longest(folder, second)) == (kept, [])
    clock.wait(10)
    # The end of a prefix goes before its beginning.
    store(folder, list(range(90, 94)))
    assert longest(folder, first) == kept[:1]


def test_a_full_disk_costs_older_files(
    folder: SegmentFolder, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = store(folder)
    clock.wait(10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=FULL * BYTES - 1))
    newer = store(folder, PROMPT[::-1])
    assert longest(folder, PROMPT[::-1]) == newer
    assert folder.read(older[0], PROMPT[:FULL], layout(FULL)) is None


def test_files_of_all_models_count(open_folder: Callable[..., SegmentFolder], tmp_path: Path, clock: HandClock) -> None:
    one, other = (open_folder(name, 10) for name in ("model-a", "model-b"))
    store(one)
    clock.wait(10)
    store(other, lengths=(FULL, FULL))
    assert longest(one) == []
    assert [(model.name, model.num_files) for model in stored_models(tmp_path / "prefixes")] == [("model-b", 2)]
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.kv")) <= 10 * BYTES


def test_a_damaged_file_is_removed(folder: SegmentFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (stored,) = store(folder)
    path = tmp_path / "prefixes" / "model-a" / stored.name
    path.write_bytes(path.read_bytes()[:-1])
    assert folder.read(stored, PROMPT[:FULL], layout(FULL)) is None
    assert "another length" in caplog.text
    assert not path.exists()
    assert longest(folder) == []


def test_a_file_that_another_engine_removed_is_missed(folder: SegmentFolder, caplog: pytest.LogCaptureFixture) -> None:
    (stored,) = store(folder)
    longest(folder)
    clear(Path(folder.root), "model-a")
    assert folder.read(stored, PROMPT[:FULL], layout(FULL)) is None
    assert not caplog.text


def test_segments_set_aside_are_not_found(folder: SegmentFolder, open_folder: Callable[..., SegmentFolder]) -> None:
    other = open_folder()
    assert folder.set_aside() is None
    store(folder)
    assert longest(other)
    removed = folder.set_aside()
    assert removed is not None
    assert longest(folder) == longest(other) == []
    assert store(folder) == longest(folder)
    # A process that is killed before it deletes the files leaves them to the next one.
    open_folder("model-c")
    assert not removed.exists()


def test_half_written_files_go_and_strange_names_are_ignored(folder: SegmentFolder, tmp_path: Path) -> None:
    left, model = tmp_path / "prefixes" / ".writing", tmp_path / "prefixes" / "model-a"
    left.write_bytes(b"half")  # of a process that was killed
    stored = store(folder)
    assert not left.exists()
    (model / "notes.txt").write_text("not ours")
    (model / "x-4-y.kv").write_text("not ours")
    shutil.copy(model / stored[0].name, model / stored[0].name.replace(".kv", ".kv.bak"))
    assert longest(folder) == stored


def test_only_its_user_can_enter_the_folder(tmp_path: Path, open_folder: Callable[..., SegmentFolder]) -> None:
    root = tmp_path / "prefixes"
    root.mkdir()
    root.chmod(0o755)
    store(open_folder())
    assert [path.stat().st_mode & 0o777 for path in (root, root / "model-a")] == [0o700, 0o700]
