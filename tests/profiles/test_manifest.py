"""The manifest: read as far as it was written; no entry leads out of its folder."""

from pathlib import Path

import pytest

from genai_server.profiles.manifest import SUFFIX, End, PassRecord, encode_line, find_manifests, read_manifest
from tests.profiles.files import record, session, write_session


def test_a_manifest_says_which_file_is_which_token(tmp_path: Path) -> None:
    manifest = read_manifest(write_session(tmp_path, decodes=2))
    assert manifest is not None
    assert (manifest.session.model, manifest.session.threads) == ("demo", 2)
    assert [(one.phase, one.token, one.num_tokens) for one in manifest.passes] == [
        ("prefill", 0, 12),
        ("decode", 1, 1),
        ("decode", 2, 1),
    ]
    assert all(path.exists() for path in manifest.files)
    assert manifest.end is not None


def test_a_line_that_was_not_written_to_its_end_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / f"a{SUFFIX}"
    path.write_bytes(session("a") + record("a_1.json", 1, 0.0) + record("a_2.json", 2, 0.0)[:-20])
    manifest = read_manifest(path)
    assert manifest is not None
    assert [one.token for one in manifest.passes] == [1]
    assert manifest.end is None


@pytest.mark.parametrize("name", ["../a.json", "/etc/a.json", "b\\a.json", "C:a.json", "a.txt", ""])
def test_a_file_elsewhere_does_not_count(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"a{SUFFIX}"
    path.write_bytes(session("a") + record(name, 1, 0.0))
    manifest = read_manifest(path)
    assert manifest is not None
    assert manifest.passes == []


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


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_manifests(tmp_path / "nowhere")


def test_a_newer_version_may_say_more(tmp_path: Path) -> None:
    line = encode_line(PassRecord("a.json", "r", "decode", 1, 1, 1, 0.0, 0.0, 0.0))
    path = tmp_path / f"a{SUFFIX}"
    path.write_bytes(session("a") + line.replace(b'"file"', b'"new":1,"file"') + b'{"type":"newer"}\n')
    manifest = read_manifest(path)
    assert manifest is not None
    assert len(manifest.passes) == 1
