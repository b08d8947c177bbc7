"""What the checks before a start log."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from genai_server.cli.serve.preflight import check_access, check_models, check_storage, why_no_profiles
from genai_server.errors import ConfigurationError
from tests.given_settings import given
from tests.model_edits import base_model
from tests.running_server import DEMO, ROOT

_MODELS = {"speech": ROOT / "tests" / "built_models" / "whisper", "vectors": ROOT / "models" / "demo-embeddings"}


@pytest.mark.parametrize("name", ["base", *_MODELS])
def test_only_models_that_generate_lack_a_chat_template_and_need_the_tokens_of_their_draft_model(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = _MODELS.get(name) or base_model(tmp_path / name)
    check_models(given(models=f"{name}={directory}", draft_model=f"{name}={DEMO}"))
    assert (f"model {name} has no chat template" in caplog.text) is (name == "base")


def test_the_folder_for_files_must_be_writable(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    check_storage(given(files_dir=str(folder)))
    assert folder.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="GENAI_FILES_DIR=.*file: cannot be written: file exists"):
        check_storage(given(files_dir=str(tmp_path / "file")))


def test_responses_are_stored_next_to_the_files(tmp_path: Path) -> None:
    folder, responses = tmp_path / "files", tmp_path / "responses.db"
    both = given(files_dir=str(folder), response_store_file=str(responses))
    with pytest.raises(ConfigurationError, match=f"in {folder / 'store.sqlite'}; remove this setting"):
        check_storage(both)
    responses.touch()
    with pytest.raises(ConfigurationError, match=rf"\(mv {responses} {folder / 'store.sqlite'}\) and remove this"):
        check_storage(both)
    _write_database(folder / "store.sqlite", 99)
    with pytest.raises(ConfigurationError, match="GENAI_FILES_DIR=.*files: it has version 99"):
        check_storage(given(files_dir=str(folder)))


def _write_database(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE a (b)")
        file.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("name", ["response_store_file", "usage_file"])
def test_files_of_stores_must_be_usable(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("no database " * 1000)
    (tmp_path / "folder").mkdir()
    _write_database(tmp_path / "newer", 99)
    for place, why in (
        ("missing/store", "cannot be written: no such file or directory"),
        ("text/store", "cannot be written: not a directory"),
        ("folder", "cannot be used: unable to open database file"),
        ("text", "cannot be used: file is not a database"),
        ("newer", r"it has version 99, but this server supports versions? [\d and]+$"),
    ):
        with pytest.raises(ConfigurationError, match=f"^GENAI_{name.upper()}=.*{place}: {why}"):
            check_storage(given(**{name: str(tmp_path / place)}))
    before = sorted(tmp_path.iterdir())
    check_storage(given(**{name: str(tmp_path / "new")}))
    assert sorted(tmp_path.iterdir()) == before


def test_file_that_another_server_writes_to_is_usable(tmp_path: Path) -> None:
    _write_database(tmp_path / "store", 1)
    with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as file:
        file.execute("BEGIN EXCLUSIVE")
        check_storage(given(response_store_file=str(tmp_path / "store")))


def test_a_missing_folder_for_profiles_and_no_keys_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, keys = tmp_path / "a" / "profiles", tmp_path / "keys"
    assert why_no_profiles(given(profile_dir=str(folder))) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").write_text("a file")
    check_storage(given(profile_dir=str(folder)))
    assert f"GENAI_PROFILE_DIR={folder}: cannot be written: not a directory; nothing can be profiled" in caplog.text
    keys.touch()
    check_access(given(api_key_file=str(keys)))
    assert f"{keys} has no API key" in caplog.text
