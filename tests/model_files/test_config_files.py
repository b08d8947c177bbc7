"""JSON files of model directories: what is read, and how the error for a file that cannot be read names it."""

import os
import sys
from pathlib import Path

import pytest

from genai_server.errors import ModelDirectoryError
from genai_server.model_files.config_files import read_object, read_value


def test_a_missing_file_is_the_given_value_and_a_wrong_path_an_error(tmp_path: Path) -> None:
    assert read_value(tmp_path / "a.json", [1]) == [1]
    assert read_object(tmp_path / "a.json") == {}
    with pytest.raises(ModelDirectoryError, match="cannot be read"):
        read_object(tmp_path / ("a" * 5000) / "a.json")


@pytest.mark.parametrize("text", ["{", "\xff", "[" * 100_000, "[]"])
def test_a_file_without_an_object_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ModelDirectoryError, match=r"a\.json cannot be read"):
        read_object(path)


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes in folders")
def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    assert read_object(tmp_path / "a.json") == {}
