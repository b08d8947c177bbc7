"""`genai-server cache` on a folder of prefixes."""

from pathlib import Path

import pytest

from genai_server.cli import main

MIB = 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GENAI_PREFIX_CACHE_DIR", str(tmp_path))
    for model, size in (("phi-1a", 3 * MIB), ("qwen-2b", MIB)):
        (tmp_path / model).mkdir()
        (tmp_path / model / "one.kv").write_bytes(bytes(size))
    (tmp_path / "lock").touch()
    return tmp_path


def run(*arguments: str) -> int:
    return main(["cache", *arguments])


def test_list_names_each_model_with_its_size(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert capsys.readouterr().out.splitlines() == [
        "phi-1a          3 MiB       1 files, last used just now",
        "qwen-2b         1 MiB       1 files, last used just now",
    ]


@pytest.mark.parametrize(
    ("arguments", "removed", "left"),
    [(["phi-1a"], "3 MiB of 1 model", ["lock", "qwen-2b"]), ([], "4 MiB of 2 models", ["lock"])],
)
def test_clear_removes_one_model_or_all(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], removed: str, left: list[str]
) -> None:
    assert run("clear", "llama") != 0
    assert f"no prefixes of a model llama in {folder}" in capsys.readouterr().err
    assert run("clear", *arguments) == 0
    assert capsys.readouterr().out == f"removed {removed} from {folder}\n"
    assert sorted(path.name for path in folder.iterdir()) == left
    run("list")
    assert capsys.readouterr().out.startswith(f"no prefixes in {folder}") is (left == ["lock"])
