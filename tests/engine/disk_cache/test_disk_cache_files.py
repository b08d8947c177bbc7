"""Files of segments: what was written is read, and whatever else lies there is refused."""

import os
import shutil
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


ROOT = root_key(None, is_long=False)
FULL = 4
# Of one token. The files of the tests have less than twice as many bytes besides.
BYTES = 1000
PROMPT = list(range(100, 120))


def layout(num_tokens: int) -> list[ArrayLayout]:
    return [ArrayLayout((num_tokens, BYTES), np.uint8)]


def segments(tokens: list[int], lengths: list[int], root: str = ROOT) -> list[Segment]:
    """The segments of a prefix of these lengths."""
    found, parent, start = [], root, 0
    for length in lengths:
        key = segment_key(parent, tokens[start : start + length])
        found.append(Segment(parent, length, key))
        parent, start = key, start + length
    return found


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def store(folder: SegmentFolder, tokens: list[int], lengths: list[int]) -> list[Segment]:
    """Store a prefix whose bytes are its tokens."""
    stored, start = segments(tokens, lengths), 0
    with folder.writing(sum(lengths) * BYTES):
        for segment in stored:
            part = tokens[start : start + segment.num_tokens]
            folder.write(segment, part, [np.repeat(np.array(part, np.uint8)[:, None], BYTES, axis=1)])
            start += segment.num_tokens
    folder.touch(stored, states=False)
    return stored


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path, clock: Clock) -> SegmentFolder:
    return SegmentFolder(tmp_path / "prefixes", "model-a", 100 * BYTES, clock)


def test_the_longest_stored_prefix_is_found(folder: SegmentFolder) -> None:
    stored = store(folder, PROMPT, [FULL, FULL, FULL])
    assert folder.longest(ROOT, PROMPT, states=False) == stored
    assert folder.longest(ROOT, PROMPT[:11], states=False) == stored[:2]
    assert folder.longest(ROOT, [*PROMPT[:6], 1, *PROMPT[7:]], states=False) == stored[:1]
    assert folder.longest(ROOT, [1, *PROMPT[1:]], states=False) == []
    assert folder.longest(root_key("salt", is_long=False), PROMPT, states=False) == []


def test_a_prefix_with_states_ends_where_they_are(folder: SegmentFolder) -> None:
    full = store(folder, PROMPT, [FULL, FULL, FULL])
    part = store(folder, PROMPT, [FULL, FULL, 2])[-1]
    assert folder.longest(ROOT, PROMPT, states=True) == []
    with folder.writing(BYTES):
        folder.write_states(part.key, [np.ones(3, np.float32)])
    assert folder.longest(ROOT, PROMPT, states=True) == [*full[:2], part]
    with folder.writing(BYTES):
        folder.write_states(full[2].key, [np.full(3, 2, np.float32)])
    assert folder.longest(ROOT, PROMPT, states=True) == full
    found = folder.read_states(full[2].key, [ArrayLayout((3,), np.float32)])
    assert found is not None
    assert found[0].tolist() == [2, 2, 2]


def test_another_engine_finds_what_one_stores(folder: SegmentFolder, tmp_path: Path) -> None:
    other = SegmentFolder(tmp_path / "prefixes", "model-a", 100 * BYTES)
    foreign = SegmentFolder(tmp_path / "prefixes", "model-b", 100 * BYTES)
    assert other.longest(ROOT, PROMPT, states=False) == []
    stored = store(folder, PROMPT, [FULL])
    assert other.longest(ROOT, PROMPT, states=False) == stored
    assert foreign.longest(ROOT, PROMPT, states=False) == []
    found = other.read(stored[0], PROMPT[:FULL], layout(FULL))
    assert found is not None
    assert found[0][:, 0].tolist() == PROMPT[:FULL]


def test_the_least_recently_used_is_removed_first(tmp_path: Path, clock: Clock) -> None:
    folder = SegmentFolder(tmp_path / "prefixes", "model-a", 14 * BYTES, clock)
    first, second = list(range(8)), list(range(50, 58))
    kept = store(folder, first, [FULL, FULL])
    clock.now += 10
    store(folder, second, [FULL])
    clock.now += 10
    folder.touch(kept, states=False)
    clock.now += 10
    store(folder, list(range(80, 84)), [FULL])
    assert folder.longest(ROOT, second, states=False) == []
    assert folder.longest(ROOT, first, states=False) == kept
    clock.now += 10
    # The end of a prefix goes before its beginning.
    store(folder, list(range(90, 94)), [FULL])
    assert folder.longest(ROOT, first, states=False) == kept[:1]


def test_a_full_disk_costs_older_files(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SegmentFolder(tmp_path / "prefixes", "model-a", 100 * BYTES, clock)
    older = store(folder, PROMPT, [FULL])
    clock.now += 10
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=FULL * BYTES - 1))
    newer = store(folder, PROMPT[::-1], [FULL])
    assert folder.longest(ROOT, PROMPT[::-1], states=False) == newer
    assert folder.read(older[0], PROMPT[:FULL], layout(FULL)) is None


def test_files_of_all_models_count(tmp_path: Path, clock: Clock) -> None:
    root = tmp_path / "prefixes"
    one, other = (SegmentFolder(root, name, 10 * BYTES, clock) for name in ("model-a", "model-b"))
    store(one, PROMPT, [FULL])
    clock.now += 10
    store(other, PROMPT, [FULL, FULL])
    assert one.longest(ROOT, PROMPT, states=False) == []
    assert [(model.name, model.num_files) for model in stored_models(root)] == [("model-b", 2)]
    assert sum(file.stat().st_size for file in root.rglob("*.kv")) <= 10 * BYTES


def test_a_damaged_file_is_removed(folder: SegmentFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = store(folder, PROMPT, [FULL])
    path = tmp_path / "prefixes" / "model-a" / stored[0].name
    path.write_bytes(path.read_bytes()[:-1])
    assert folder.read(stored[0], PROMPT[:FULL], layout(FULL)) is None
    assert "another length" in caplog.text
    assert not path.exists()
    assert folder.longest(ROOT, PROMPT, states=False) == []


def test_a_file_that_another_engine_removed_is_missed(folder: SegmentFolder, caplog: pytest.LogCaptureFixture) -> None:
    stored = store(folder, PROMPT, [FULL])
    folder.longest(ROOT, PROMPT, states=False)
    clear(Path(folder.root), "model-a")
    assert folder.read(stored[0], PROMPT[:FULL], layout(FULL)) is None
    assert not caplog.text


def test_segments_set_aside_are_not_found(folder: SegmentFolder, tmp_path: Path) -> None:
    other = SegmentFolder(tmp_path / "prefixes", "model-a", 100 * BYTES)
    assert folder.set_aside() is None
    store(folder, PROMPT, [FULL])
    assert other.longest(ROOT, PROMPT, states=False)
    removed = folder.set_aside()
    assert removed is not None
    assert folder.longest(ROOT, PROMPT, states=False) == []
    assert other.longest(ROOT, PROMPT, states=False) == []
    assert store(folder, PROMPT, [FULL]) == folder.longest(ROOT, PROMPT, states=False)
    # A process that is killed before it deletes the files leaves them to the next one.
    SegmentFolder(tmp_path / "prefixes", "model-c", 100 * BYTES)
    assert not removed.exists()


def test_a_half_written_file_of_a_killed_process_goes(folder: SegmentFolder, tmp_path: Path) -> None:
    left = tmp_path / "prefixes" / ".writing"
    left.write_bytes(b"half")
    stored = store(folder, PROMPT, [FULL])
    assert folder.longest(ROOT, PROMPT, states=False) == stored
    assert not left.exists()


def test_strange_names_are_ignored(folder: SegmentFolder, tmp_path: Path) -> None:
    stored = store(folder, PROMPT, [FULL])
    model = tmp_path / "prefixes" / "model-a"
    (model / "notes.txt").write_text("not ours")
    (model / "x-4-y.kv").write_text("not ours")
    shutil.copy(model / stored[0].name, model / stored[0].name.replace(".kv", ".kv.bak"))
    assert folder.longest(ROOT, PROMPT, states=False) == stored


def test_only_its_user_can_enter_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "prefixes"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    folder = SegmentFolder(root, "model-a", 100 * BYTES)
    store(folder, PROMPT, [FULL])
    assert [path.stat().st_mode & 0o777 for path in (root, root / "model-a")] == [0o700, 0o700]


def test_the_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="another user"):
        SegmentFolder(tmp_path, "model-a", 100 * BYTES)
