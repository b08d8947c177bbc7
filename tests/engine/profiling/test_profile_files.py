"""The folder of profiles: where files are written, what counts, and when it is full."""

import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from genai_server import __version__
from genai_server.engine.profiling.profile_files import (
    MIN_FREE,
    ProfileFolder,
    ProfileManifest,
    session_template,
    wait_for_next_file_name,
)
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest
from genai_server.options.device import DeviceOptions
from genai_server.profiles.manifest import SUFFIX, End, Manifest, Session, encode_line, find_manifests
from tests.profiles.files import session, write_session


def _folder(root: Path, device: str = "cpu", max_files: int = 100, max_bytes: int = 10_000) -> ProfileFolder:
    return ProfileFolder(root, device, max_files=max_files, max_bytes=max_bytes)


def _write(folder: ProfileFolder, name: str, size: int = 10) -> None:
    folder.prepare()
    (folder.directory / name).write_bytes(b"x" * size)


def test_prepare_creates_the_folder_with_parents_and_repeats(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a" / "b")
    assert folder.usage() == (0, 0)
    for _ in range(2):
        folder.prepare()
    assert folder.directory.is_dir()


def test_each_device_has_a_folder_whose_name_every_system_allows(tmp_path: Path) -> None:
    assert _folder(tmp_path, "cuda:1").directory == tmp_path / "cuda-1"
    assert _folder(tmp_path, "cuda").directory != _folder(tmp_path, "cuda:1").directory


def test_the_prefix_for_the_library_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _folder(Path("profiles")).path_prefix("slow") == str(tmp_path.resolve() / "profiles" / "cpu" / "slow")


def test_the_profiles_of_all_devices_count_and_nothing_else(tmp_path: Path) -> None:
    one, other = _folder(tmp_path, "cpu"), _folder(tmp_path, "cuda:1")
    _write(one, "a.json", 10)
    _write(one, "notes.txt", 1000)
    _write(other, "b.json", 5)
    (tmp_path / "c.json").write_bytes(b"x" * 1000)
    assert one.usage() == other.usage() == (2, 15)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"max_files": 2}, "2 profiles reach GENAI_PROFILE_MAX_FILES (2)"),
        ({"max_bytes": 100}, "100 bytes of profiles reach GENAI_PROFILE_MAX_BYTES (100)"),
    ],
)
def test_usage_may_stay_below_a_limit_and_not_reach_it(tmp_path: Path, limit: dict[str, Any], reason: str) -> None:
    folder = _folder(tmp_path, **limit)
    _write(folder, "a.json", 99)
    assert folder.limit_reached() is None
    _write(folder, "b.json", 1)
    assert folder.limit_reached() == reason
    (folder.directory / "b.json").unlink()
    assert folder.limit_reached() is None


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The calls that count the files of a folder."""
    count = Mock(side_effect=ProfileFolder.usage)
    monkeypatch.setattr(ProfileFolder, "usage", lambda folder: count(folder))
    return count


def test_file_count_is_cached_except_for_this_engines_files(tmp_path: Path, counted: Mock) -> None:
    folder = _folder(tmp_path, max_files=503, max_bytes=10**6)
    for number in range(500):
        _write(folder, f"{number}.json")
    for name in ("a.json", "b.json"):
        assert folder.limit_reached() is None
        _write(folder, name)
        folder.wrote([10])
    _write(_folder(tmp_path, "cuda"), "c.json")
    assert [folder.limit_reached() for _ in range(4)] == [None] * 4
    assert counted.call_count == 1
    assert folder.limit_reached() == "503 profiles reach GENAI_PROFILE_MAX_FILES (503)"


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


@pytest.mark.parametrize(("max_files", "left"), [(12, ["mine_2", "mine_3"]), (100, ["mine_1", "mine_2", "mine_3"])])
def test_oldest_sessions_of_all_devices_are_evicted_first_where_space_is_short(
    tmp_path: Path, max_files: int, left: list[str]
) -> None:
    for device, began in (("cuda-1", 1.0), ("cpu", 2.0), ("cpu", 3.0)):
        write_session(tmp_path / device, decodes=4, began=began)
    assert _folder(tmp_path, max_files=max_files, max_bytes=10**6).make_room(()) is None
    assert sorted(manifest.session.id for manifest in find_manifests(tmp_path)) == left


def test_eviction_frees_a_tenth_from_sessions_with_files(tmp_path: Path, counted: Mock) -> None:
    """A request next to a profiled one once waited 20 s: a thousand sessions without files were removed one by one, and
    all files counted after each.
    """
    folder = _folder(tmp_path, max_files=40, max_bytes=10**6)
    for began in range(8):
        write_session(tmp_path / "cpu", decodes=4, began=1.0 + began)
    for began in range(1000):
        write_empty_session(tmp_path / "cpu", began / 1000)
    assert folder.make_room(()) is None
    assert counted.call_count <= 3
    assert folder.usage()[0] == 35
    assert len(find_manifests(tmp_path)) == 1007


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


PROMPT = [1, 2, 3]


class Writer:
    """A manifest with one sequence, whose passes write files like ONNX Runtime's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = ProfileManifest(folder, Session(id="", prefix="", started=0, model="demo"))
        self.sequence = Sequence(0, (0, 0), GenerationRequest("mine", PROMPT, 10, 20), lambda: 0.0)
        self.sequence.profile.active = "slow"

    def run(self, *names: str, num_tokens: int | None = None, content: str = "[]") -> None:
        """A pass that reads these or all unread tokens, and writes files."""
        self.manifest.before_step(self.sequence)
        for name in names:
            (self.folder / name).write_text(content, encoding="utf-8")
        self.sequence.num_read += num_tokens or self.sequence.num_unread
        self.manifest.after_step(self.sequence)
        wait_for_next_file_name()
        if self.sequence.num_unread == 0:
            self.sequence.append(9)

    def read(self) -> Manifest:
        """The only manifest."""
        (found,) = find_manifests(self.folder)
        return found


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def test_each_file_has_the_token_that_its_pass_went_for(writer: Writer) -> None:
    (writer.folder / "old.json").write_text("[]", encoding="utf-8")
    writer.run("slow_1.json", "notes.txt", num_tokens=2)
    writer.run("slow_2.json", "slow_3.json")
    writer.run("slow_4.json")
    passes = writer.read().passes
    assert [(each.file, each.phase, each.token, each.position, each.num_tokens) for each in passes] == [
        ("slow_1.json", "prefill", 0, 0, 2),
        ("slow_2.json", "prefill", 0, 2, 1),
        ("slow_3.json", "prefill", 0, 2, 1),
        ("slow_4.json", "decode", 1, 3, 1),
    ]
    assert {each.request_id for each in passes} == {"mine"}
    assert all(each.seconds > 0 and each.cpu_seconds >= 0 for each in passes)


def test_file_of_a_failed_pass_is_not_the_next_passes(writer: Writer) -> None:
    writer.manifest.before_step(writer.sequence)
    (writer.folder / "slow_1.json").write_text("[]", encoding="utf-8")
    writer.run("slow_2.json")
    assert [each.file for each in writer.read().passes] == ["slow_2.json"]


def test_session_starts_with_its_first_file_and_common_data(writer: Writer) -> None:
    writer.run()
    assert find_manifests(writer.folder) == []
    writer.run("slow_1.json")
    found = writer.read()
    assert (found.session.model, found.session.prefix, found.end) == ("demo", "slow", None)
    assert found.session.id.startswith("slow_")


def test_a_session_ends_once_and_the_next_file_begins_another(writer: Writer) -> None:
    writer.run("slow_1.json")
    writer.manifest.end("slow", "enough")
    writer.manifest.end("slow")
    assert (end := writer.read().end) is not None
    assert end.reason == "enough"
    writer.run("slow_2.json")
    files = [[each.file for each in found.passes] for found in find_manifests(writer.folder)]
    assert files == [["slow_1.json"], ["slow_2.json"]]


def test_only_sessions_with_other_prefixes_end(writer: Writer) -> None:
    writer.run("slow_1.json")
    writer.sequence.profile.active = "other"
    writer.run("other_1.json")
    assert len(writer.manifest.open_sessions) == 2
    writer.manifest.end_except({"other"})
    ended = {found.session.prefix: found.end is not None for found in find_manifests(writer.folder)}
    assert ended == {"slow": True, "other": False}


@pytest.mark.parametrize("content", ["", '[{"name": "a", "ts'])
def test_incomplete_profile_file_raises_an_error(writer: Writer, content: str) -> None:
    with pytest.raises(OSError, match=r"could not write slow_1\.json"):
        writer.run("slow_1.json", content=content)
    assert [each.file for each in writer.read().passes] == ["slow_1.json"]


def test_a_folder_that_an_operator_has_removed_harms_no_pass(writer: Writer) -> None:
    writer.run("slow_1.json")
    shutil.rmtree(writer.folder)
    writer.run()
    writer.manifest.end("slow")
    assert not writer.folder.exists()


def test_manifest_has_the_engines_model_threads_and_versions(tmp_path: Path) -> None:
    about = session_template("cpu", tmp_path / "demo", 0)
    assert (about.device, about.model, about.spins) == ("cpu", "demo", True)
    assert about.threads == about.cores >= 1
    assert session_template("cpu", tmp_path, 7).threads == 7
    assert about.versions["genai-server"] == __version__
    assert {"onnxruntime", "onnxruntime-genai", "python"} <= set(about.versions)


def test_threads_of_a_session_are_those_of_its_options(tmp_path: Path) -> None:
    entries = {"session.intra_op.allow_spinning": "0"}
    about = session_template("cpu", tmp_path, 7, DeviceOptions(session={"intra_op_num_threads": "3"}, entries=entries))
    assert (about.threads, about.spins) == (3, False)


def test_version_of_a_duplicate_library_is_the_imported_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("first", "9.9.1"), ("second", "9.9.2")):
        metadata = tmp_path / folder / f"onnxruntime_x-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: onnxruntime-x\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    assert session_template("cpu", tmp_path, 1).versions["onnxruntime-x"] == "9.9.1"
