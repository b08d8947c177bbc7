"""The manifest: read as far as it was written; no entry leads out of its folder."""

import os
from pathlib import Path

import pytest

from genai_server.messages.admin import ProfilePlan
from genai_server.profiles.manifest import (
    ABANDONED_AFTER,
    SUFFIX,
    End,
    Manifest,
    PassRecord,
    Session,
    encode_line,
    find_manifests,
    is_open,
    read_manifest,
    removable,
    remove,
    remove_all,
)
from tests.profiles.files import record, session, write_session


def read(folder: Path, *lines: bytes) -> Manifest:
    """The manifest of these lines."""
    path = folder / f"a{SUFFIX}"
    path.write_bytes(b"".join(lines))
    manifest = read_manifest(path)
    assert manifest is not None
    return manifest


def test_a_manifest_says_which_file_is_which_token(tmp_path: Path) -> None:
    manifest = read_manifest(write_session(tmp_path, decodes=2))
    assert manifest is not None
    assert (manifest.session.model, manifest.session.threads) == ("demo", 2)
    passes = [(one.phase, one.token, one.num_tokens) for one in manifest.passes]
    assert passes == [("prefill", 0, 12), ("decode", 1, 1), ("decode", 2, 1)]
    assert all(path.exists() for path in manifest.files)
    assert manifest.end is not None


def test_a_line_that_was_not_written_to_its_end_does_not_count(tmp_path: Path) -> None:
    manifest = read(tmp_path, session("a"), record("a_1.json", 1, 0.0), record("a_2.json", 2, 0.0)[:-20])
    assert ([one.token for one in manifest.passes], manifest.end) == ([1], None)


@pytest.mark.parametrize("name", ["../a.json", "/etc/a.json", "b\\a.json", "C:a.json", "a.txt", ""])
def test_a_file_elsewhere_does_not_count(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, session("a"), record(name, 1, 0.0)).passes == []


def test_file_without_a_session_is_not_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / f"a{SUFFIX}"
    path.write_bytes(encode_line(End(0.0)))
    assert read_manifest(path) is None


def test_the_manifests_of_all_devices_are_found_oldest_first(tmp_path: Path) -> None:
    write_session(tmp_path / "cuda-1", began=2.0)
    write_session(tmp_path / "cpu", began=1.0)
    write_session(tmp_path / "cpu", began=3.0)
    write_session(tmp_path / "cpu" / "deeper", began=4.0)
    (tmp_path / "cpu" / f"broken{SUFFIX}").write_text("{", encoding="utf-8")
    assert [manifest.session.started for manifest in find_manifests(tmp_path)] == [1.0, 2.0, 3.0]
    assert [manifest.session.started for manifest in find_manifests(tmp_path / "cpu")] == [1.0, 3.0, 4.0]


def test_a_folder_that_is_not_there_is_an_error_and_has_nothing_to_remove(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_manifests(tmp_path / "nowhere")
    assert removable(tmp_path / "nowhere", NOW) == []


def test_a_newer_version_may_say_more(tmp_path: Path) -> None:
    line = encode_line(PassRecord("a.json", "r", "decode", 1, 1, 1, 0.0, 0.0, 0.0))
    newer = line.replace(b'"file"', b'"new":1,"file"') + b'{"type":"newer"}\n'
    assert len(read(tmp_path, session("a"), newer).passes) == 1


NOW = 1_000_000.0


def ids(root: Path) -> list[str]:
    return [manifest.session.id for manifest in find_manifests(root)]


def test_session_is_removed_with_its_files_only(tmp_path: Path) -> None:
    write_session(tmp_path, began=1.0)
    write_session(tmp_path, began=50.0)
    (tmp_path / "notes.json").write_text("{}", encoding="utf-8")
    remove(find_manifests(tmp_path)[0])
    assert ids(tmp_path) == ["mine_50"]
    assert len(list(tmp_path.glob("mine_50_*.json"))) == 9
    assert (tmp_path / "notes.json").exists()
    assert len(list(tmp_path.iterdir())) == 11


def test_a_session_some_of_whose_files_are_gone_can_be_removed(tmp_path: Path) -> None:
    write_session(tmp_path)
    next(iter(tmp_path.glob("mine_*_3.json"))).unlink()
    remove(find_manifests(tmp_path)[0])
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_is_written_to_stays(tmp_path: Path) -> None:
    manifest = write_session(tmp_path, end=False)
    write_session(tmp_path, began=5.0)
    os.utime(manifest, (NOW, NOW))
    assert [each.session.id for each in removable(tmp_path, NOW + 60)] == ["mine_5"]
    assert removable(tmp_path, NOW + 60, keep=[tmp_path / "mine_5.manifest.jsonl"]) == []


def test_a_session_is_open_until_it_is_abandoned_or_its_plan_ends(tmp_path: Path) -> None:
    path = write_session(tmp_path, end=False)
    os.utime(path, (NOW, NOW))
    (manifest,) = find_manifests(tmp_path)
    assert [is_open(manifest, NOW + age) for age in (ABANDONED_AFTER - 1, ABANDONED_AFTER)] == [True, False]
    plan = ProfilePlan("mine", max_seconds=50_000.0)
    waiting = Manifest(tmp_path / "m", Session("mine_1", "mine", 1000.0, plan=plan), [], None, changed=1000.0)
    assert is_open(waiting, 50_000.0)
    assert not is_open(waiting, 51_000.0 + ABANDONED_AFTER)


def test_session_that_cannot_be_removed_does_not_stop_others(tmp_path: Path) -> None:
    write_session(tmp_path, began=1.0)
    write_session(tmp_path, began=50.0)
    stubborn = next(iter(tmp_path.glob("mine_1_2.json")))
    stubborn.unlink()
    stubborn.mkdir()
    remove_all(removable(tmp_path, NOW))
    assert ids(tmp_path) == ["mine_1"]
