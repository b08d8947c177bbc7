"""The folder of models: names, notes of origin, digests of files, and atomic changes."""

import os
from pathlib import Path

import pytest

from genai_server.errors import ConfigurationError, PullFailed
from genai_server.hub import store
from genai_server.hub.store import ORIGIN, Origin, digest_of, has_digest


def make(directory: Path, **files: bytes) -> Path:
    directory.mkdir(parents=True)
    for name, content in ({"genai_config.json": b"{}"} | files).items():
        (directory / name).write_bytes(content)
    return directory


def test_a_models_place_has_the_last_part_of_its_source_and_hides_unfinished_ones(tmp_path: Path) -> None:
    assert store.place_of(tmp_path, "org/name") == tmp_path / "name"
    assert store.place_of(tmp_path, "name") == tmp_path / "name"
    folder = make(store.staging(tmp_path / "name"))
    assert store.models_in(tmp_path) == []
    assert store.unfinished_in(tmp_path) == [folder]


def test_install_names_the_model_and_replaces_the_old_one(tmp_path: Path) -> None:
    directory = make(tmp_path / "name", old=b"x")
    folder = make(store.staging(directory), new=b"y")
    origin = Origin("org/name", "c" * 40, files={"new": digest_of(folder / "new", "git")})
    store.install(folder, directory, origin)
    assert store.read_origin(directory) == origin
    assert sorted(path.name for path in directory.iterdir()) == [ORIGIN, "genai_config.json", "new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["name"]


def test_seeded_folder_shares_files_without_disk_space(tmp_path: Path) -> None:
    directory = make(tmp_path / "name", weights=b"w")
    folder = store.staging(directory)
    store.seed(folder, directory)
    assert (folder / "weights").samefile(directory / "weights")


def test_a_file_that_differs_or_is_gone_has_changed(tmp_path: Path) -> None:
    directory = make(tmp_path / "name", one=b"1", two=b"2", three=b"3")
    digests = {name: digest_of(directory / name, "sha256") for name in ("one", "two", "three")}
    (directory / "one").write_bytes(b"0")
    (directory / "two").unlink()
    assert store.changed_files(directory, Origin("org/name", files=digests)) == ["one", "two"]


@pytest.mark.parametrize("content", [None, b"{", b"[]"])
def test_a_directory_without_a_readable_note_has_no_origin(tmp_path: Path, content: bytes | None) -> None:
    directory = make(tmp_path / "name", **({ORIGIN: content} if content else {}))
    assert store.read_origin(directory) is None


def test_remove_deletes_unfinished_parts_and_returns_the_bytes(tmp_path: Path) -> None:
    make(tmp_path / "name", weights=bytes(100))
    make(store.staging(tmp_path / "name"), weights=bytes(50))
    assert store.remove(tmp_path, "name") == 100 + 50 + 2 * 2
    assert list(tmp_path.iterdir()) == []


def test_only_models_of_the_folder_can_be_removed(tmp_path: Path) -> None:
    models = tmp_path / "models"
    make(models / "name")
    make(tmp_path / "other")
    (models / "notes").mkdir()
    for name in ("../other", "..", ".", "", ".name.pull", "none", "notes"):
        with pytest.raises(ConfigurationError):
            store.remove(models, name)
    assert (tmp_path / "other" / "genai_config.json").exists()
    with pytest.raises(ConfigurationError, match="it has: name"):
        store.remove(models, "none")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_a_link_to_a_directory_elsewhere_is_not_removed(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "name").symlink_to(make(tmp_path / "elsewhere"))
    with pytest.raises(ConfigurationError, match="remove it yourself"):
        store.remove(models, "name")


def test_two_processes_do_not_build_one_directory_at_once(tmp_path: Path) -> None:
    second = store.locked(tmp_path / "name")
    with store.locked(tmp_path / "name"), pytest.raises(PullFailed, match="another process is working"), second:
        pass
    assert list(tmp_path.iterdir()) == []


def test_both_kinds_of_digests_are_those_of_their_tools_and_of_one_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello\n")
    assert digest_of(path, "git") == "git:ce013625030ba8dba906f756967f9e9ca394464a"
    assert digest_of(path, "sha256") == "sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    digest = digest_of(path, "sha256")
    assert has_digest(path, digest)
    path.write_bytes(b"hellO\n")
    assert not has_digest(path, digest)
