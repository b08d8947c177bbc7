"""Folders of profiles: the session, its passes, and their order."""

from pathlib import Path

import pytest

from genai_server.errors import ProfileNotFound
from genai_server.profiles.folder import read_profile
from tests.profiles.files import run_events, write, write_session


def test_the_last_session_is_read_unless_another_is_named(tmp_path: Path) -> None:
    write_session(tmp_path / "cpu", began=1.0)
    write_session(tmp_path / "cpu", began=200.0)
    assert read_profile(tmp_path).name == "mine_200"
    profile = read_profile(tmp_path, "mine_1")
    assert (profile.name, profile.folder) == ("mine_1", tmp_path / "cpu")
    assert [one.start for one in profile.passes] == [1_000_000 * token for token in range(9)]


def test_unknown_session_error_names_the_existing_ones(tmp_path: Path) -> None:
    write_session(tmp_path)
    with pytest.raises(ProfileNotFound, match='no session "other".*mine_1700000000'):
        read_profile(tmp_path, "other")


def test_files_without_a_manifest_are_sorted_by_time_in_name(tmp_path: Path) -> None:
    write(tmp_path / "x_2026-11-21_11-52-36_001.json", run_events(1))
    write(tmp_path / "x_2026-11-21_11-52-35_900.json", run_events(12))
    profile = read_profile(tmp_path)
    assert [(one.phase, one.num_tokens, one.start) for one in profile.passes] == [
        ("prefill", 12, 0),
        ("decode", 1, 101_000),
    ]


def test_files_without_times_follow_one_another(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.json", run_events())
    assert [one.start for one in read_profile(tmp_path).passes] == [0, 700]


def test_a_file_alone_is_a_profile_too(tmp_path: Path) -> None:
    path = write(tmp_path / "session.json", [*run_events(4, start=100), *run_events(start=2000)])
    profile = read_profile(path)
    assert (profile.name, [one.phase for one in profile.passes]) == ("session.json", ["prefill", "decode"])


def test_unreadable_file_is_reported_and_the_others_count(tmp_path: Path) -> None:
    write_session(tmp_path, decodes=3)
    (tmp_path / "mine_1700000000_1.json").write_text("[", encoding="utf-8")
    (tmp_path / "mine_1700000000_2.json").unlink()
    profile = read_profile(tmp_path)
    assert len(profile.passes) == 2
    assert set(profile.unread) == {"mine_1700000000_1.json", "mine_1700000000_2.json"}


def test_folder_without_profiles_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ProfileNotFound, match="no profile of a forward pass"):
        read_profile(tmp_path)
    (tmp_path / "mine.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ProfileNotFound, match="mine.json: not a profile"):
        read_profile(tmp_path)
    with pytest.raises(ProfileNotFound, match="there is no folder .*nowhere; it is made when"):
        read_profile(tmp_path / "nowhere")
