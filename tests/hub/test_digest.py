"""Hashes equal those of git and sha256sum."""

from pathlib import Path

from genai_server.hub.store import digest_of, has_digest


def test_both_kinds_of_digests_are_those_of_their_tools(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello\n")
    assert digest_of(path, "git") == "git:ce013625030ba8dba906f756967f9e9ca394464a"
    assert digest_of(path, "sha256") == "sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello\n")
    digest = digest_of(path, "sha256")
    assert has_digest(path, digest)
    path.write_bytes(b"hellO\n")
    assert not has_digest(path, digest)
