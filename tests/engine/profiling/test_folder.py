"""The folder of profiles: where files are written, what counts, and when it is full."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from genai_server.engine.profiling.folder import MIN_FREE, ProfileFolder, wait_for_next_file_name
from genai_server.errors import Unavailable
from genai_server.profiles.manifest import SUFFIX, End, encode_line, find_manifests
from tests.profiles.files import session, write_session


def _folder(root: Path, device: str = "cpu", max_files: int = 100, max_bytes: int = 10_000) -> ProfileFolder:
    return ProfileFolder(root, device, max_files=max_files, max_bytes=max_bytes)


def _write(folder: ProfileFolder, name: str, size: int = 10) -> None:
    folder.prepare()
    (folder.directory / name).write_bytes(b"x" * size)


def test_prepare_creates_the_folder_with_parents_and_repeats(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a" / "b")
    folder.prepare()
    folder.prepare()
    assert folder.directory.is_dir()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    with pytest.raises(Unavailable, match="taken: profiles cannot be written"):
        _folder(tmp_path / "taken").prepare()


def test_each_device_has_a_folder_whose_name_every_system_allows(tmp_path: Path) -> None:
    assert _folder(tmp_path, "cuda:1").directory == tmp_path / "cuda-1"
    assert _folder(tmp_path, "cuda").directory != _folder(tmp_path, "cuda:1").directory


def test_the_prefix_for_the_library_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _folder(Path("profiles")).path_prefix("slow") == str(tmp_path.resolve() / "profiles" / "cpu" / "slow")


def test_nothing_is_used_before_there_is_a_folder(tmp_path: Path) -> None:
    assert _folder(tmp_path / "nowhere").usage() == (0, 0)


def test_the_profiles_of_all_devices_count_and_nothing_else(tmp_path: Path) -> None:
    one, other = _folder(tmp_path, "cpu"), _folder(tmp_path, "cuda:1")
    _write(one, "a.json", 10)
    _write(one, "notes.txt", 1000)
    _write(other, "b.json", 5)
    (tmp_path / "c.json").write_bytes(b"x" * 1000)
    assert one.usage() == other.usage() == (2, 15)


def test_the_last_file_is_allowed_and_the_next_is_not(tmp_path: Path) -> None:
    folder = _folder(tmp_path, max_files=2)
    _write(folder, "a.json")
    assert folder.limit_reached() is None
    _write(folder, "b.json")
    assert folder.limit_reached() == "2 profiles reach GENAI_PROFILE_MAX_FILES (2)"


def test_the_bytes_may_stay_below_their_limit_and_not_reach_it(tmp_path: Path) -> None:
    folder = _folder(tmp_path, max_bytes=100)
    _write(folder, "a.json", 99)
    assert folder.limit_reached() is None
    _write(folder, "b.json", 1)
    assert folder.limit_reached() == "100 bytes of profiles reach GENAI_PROFILE_MAX_BYTES (100)"


def test_file_count_is_cached_except_for_this_engines_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path, max_files=503, max_bytes=10**6)
    for number in range(500):
        _write(folder, f"{number}.json")
    counted = []

    def usage() -> tuple[int, int]:
        counted.append(ProfileFolder.usage(folder))
        return counted[-1]

    monkeypatch.setattr(folder, "usage", usage)
    for name in ("a.json", "b.json"):
        assert folder.limit_reached() is None
        _write(folder, name)
        folder.wrote([10])
    _write(_folder(tmp_path, "cuda"), "c.json")
    assert [folder.limit_reached() for _ in range(4)] == [None] * 4
    assert len(counted) == 1
    assert folder.limit_reached() == "503 profiles reach GENAI_PROFILE_MAX_FILES (503)"


def test_removed_files_free_space(tmp_path: Path) -> None:
    folder = _folder(tmp_path, max_files=1)
    _write(folder, "a.json")
    (folder.directory / "a.json").unlink()
    assert folder.limit_reached() is None


def test_wait_for_next_file_name_lasts_until_the_next_ms() -> None:
    for _ in range(5):
        before = time.time_ns() // 1_000_000
        wait_for_next_file_name()
        assert time.time_ns() // 1_000_000 > before


def test_a_clock_that_is_set_back_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([3_600_000_000_000, 3_600_000_000_001, 5_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    wait_for_next_file_name()
    assert next(moments, None) is None


def test_nearly_full_disk_takes_no_further_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path)
    folder.prepare()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=MIN_FREE - 1))
    assert str(MIN_FREE - 1) in (folder.limit_reached() or "")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=MIN_FREE))
    assert folder.limit_reached() is None


def test_oldest_sessions_of_all_devices_are_evicted_first(tmp_path: Path) -> None:
    folder = _folder(tmp_path, max_files=12, max_bytes=10**6)
    write_session(tmp_path / "cuda-1", decodes=4, began=1.0)
    write_session(tmp_path / "cpu", decodes=4, began=2.0)
    write_session(tmp_path / "cpu", decodes=4, began=3.0)
    assert folder.make_room(()) is None
    assert [manifest.session.id for manifest in find_manifests(tmp_path)] == ["mine_2", "mine_3"]


def test_eviction_frees_a_tenth_from_sessions_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request next to a profiled one once waited 20 s: a thousand sessions without files were removed one by one, and
    all files counted after each.
    """
    folder = _folder(tmp_path, max_files=40, max_bytes=10**6)
    for began in range(8):
        write_session(tmp_path / "cpu", decodes=4, began=1.0 + began)
    for began in range(1000):
        write_empty_session(tmp_path / "cpu", began / 1000)
    counted = []

    def usage() -> tuple[int, int]:
        counted.append(ProfileFolder.usage(folder))
        return counted[-1]

    monkeypatch.setattr(folder, "usage", usage)
    assert folder.make_room(()) is None
    assert len(counted) <= 3
    assert folder.usage() == (35, folder.usage()[1])
    assert len(find_manifests(tmp_path)) == 1007


def test_nothing_is_evicted_while_space_is_left(tmp_path: Path) -> None:
    write_session(tmp_path / "cpu", decodes=4, began=1.0)
    assert _folder(tmp_path, max_bytes=10**6).make_room(()) is None
    assert len(find_manifests(tmp_path)) == 1


def test_sessions_beyond_the_maximum_age_are_removed(tmp_path: Path) -> None:
    now = time.time()
    write_session(tmp_path / "cpu", began=now - 1000)
    write_session(tmp_path / "cpu", began=now - 100)
    ProfileFolder(tmp_path, "cpu", max_files=1, max_bytes=1, max_age=500).remove_old()
    assert [manifest.session.started for manifest in find_manifests(tmp_path)] == [now - 100]
    _folder(tmp_path).remove_old()
    assert len(find_manifests(tmp_path)) == 1


def test_sessions_without_files_are_limited_like_files(tmp_path: Path) -> None:
    folder = _folder(tmp_path, max_files=3)
    began = [time.time() + second for second in range(5)]
    for moment in began:
        write_empty_session(tmp_path / "cpu", moment)
    folder.remove_old()
    assert [each.session.started for each in find_manifests(tmp_path)] == began[2:]


def write_empty_session(directory: Path, began: float) -> None:
    """A session without files."""
    directory.mkdir(exist_ok=True)
    name = f"empty_{began}"
    (directory / f"{name}{SUFFIX}").write_bytes(session(name, began=began) + encode_line(End(time.time())))
