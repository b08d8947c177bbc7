"""Which sessions are removed: complete ones, oldest first, and never one that is still written or an unlisted file."""

import os
from pathlib import Path

from genai_server.messages.profile_plan import ProfilePlan
from genai_server.profiles.manifest import Manifest, Session, find_manifests
from genai_server.profiles.retention import ABANDONED_AFTER, is_open, removable, remove, remove_all
from tests.profiles.files import write_session

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


def test_abandoned_session_is_removed_in_time(tmp_path: Path) -> None:
    path = write_session(tmp_path, end=False)
    os.utime(path, (NOW, NOW))
    (manifest,) = find_manifests(tmp_path)
    assert [is_open(manifest, NOW + age) for age in (ABANDONED_AFTER - 1, ABANDONED_AFTER)] == [True, False]


def test_missing_folder_has_nothing_to_remove(tmp_path: Path) -> None:
    assert removable(tmp_path / "nowhere", NOW) == []


def test_session_that_cannot_be_removed_does_not_stop_others(tmp_path: Path) -> None:
    write_session(tmp_path, began=1.0)
    write_session(tmp_path, began=50.0)
    stubborn = next(iter(tmp_path.glob("mine_1_2.json")))
    stubborn.unlink()
    stubborn.mkdir()
    remove_all(removable(tmp_path, NOW))
    assert ids(tmp_path) == ["mine_1"]


def test_waiting_session_is_open_as_long_as_its_plan(tmp_path: Path) -> None:
    plan = ProfilePlan("mine", max_seconds=50_000.0)
    waiting = Manifest(tmp_path / "m", Session("mine_1", "mine", 1000.0, plan=plan), [], None, changed=1000.0)
    assert is_open(waiting, 50_000.0)
    assert not is_open(waiting, 51_000.0 + ABANDONED_AFTER)
