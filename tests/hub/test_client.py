"""Downloads from a hub over HTTP: complete ones, and all ways in which they fail."""

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import PullFailed
from genai_server.hub.client import Hub, download
from genai_server.hub.repository import RemoteFile, select_model
from tests.local_hub import TOKEN, HubRepository, LocalHub, run_hub

MIB = 1024 * 1024
# More than one of huggingface_hub's writes of 10 MiB.
WEIGHTS = random.Random(0).randbytes(24 * MIB)
FILES = {
    "genai_config.json": b"{}",
    "model.onnx": b"graph" * 100,
    "model.onnx.data": WEIGHTS,
    "folder/tokenizer.json": b"{}",
}


@pytest.fixture
def local_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    # huggingface_hub waits a second between its attempts.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with run_hub() as hub:
        hub.repositories["org/name"] = HubRepository(dict(FILES))
        yield hub


def pull(hub: LocalHub, folder: Path, token: str | None = None, revision: str | None = None) -> None:
    client = Hub(token, hub.url)
    repository = client.repository("org/name", revision)
    download(client, repository, select_model(repository), folder)


def failure(hub: LocalHub, folder: Path, token: str | None = None, revision: str | None = None) -> str:
    with pytest.raises(PullFailed) as caught:
        pull(hub, folder, token, revision)
    return caught.value.message


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_download_has_all_files_and_fetches_none_again(local_hub: LocalHub, tmp_path: Path) -> None:
    pull(local_hub, tmp_path)
    assert contents(tmp_path) == FILES
    local_hub.sent.clear()
    pull(local_hub, tmp_path)
    assert local_hub.sent == []


def test_broken_connection_is_resumed(local_hub: LocalHub, tmp_path: Path) -> None:
    local_hub.cuts["model.onnx.data"] = [11 * MIB, 11 * MIB]
    pull(local_hub, tmp_path)
    assert contents(tmp_path) == FILES
    starts = [start for path, start in local_hub.sent if path == "model.onnx.data"]
    assert starts == [0, 10 * MIB, 20 * MIB]


@pytest.fixture
def interrupted(local_hub: LocalHub, tmp_path: Path) -> LocalHub:
    """A hub from which the test's folder has only the first 11 MiB of the weights."""
    local_hub.cuts["model.onnx.data"] = [11 * MIB] + [0] * 6
    assert "cannot be reached, or the connection broke" in failure(local_hub, tmp_path)
    local_hub.sent.clear()
    return local_hub


def test_interrupted_download_is_resumed(interrupted: LocalHub, tmp_path: Path) -> None:
    assert not (tmp_path / "model.onnx.data").exists()
    pull(interrupted, tmp_path)
    assert contents(tmp_path) == FILES
    assert ("model.onnx.data", 10 * MIB) in interrupted.sent
    assert "model.onnx" not in [path for path, _ in interrupted.sent]


@pytest.mark.parametrize("path", ["model.onnx.data", "genai_config.json"])
def test_a_file_with_another_hash_is_thrown_away_and_named(local_hub: LocalHub, tmp_path: Path, path: str) -> None:
    local_hub.forged[path] = bytes(len(FILES[path]))
    assert f"{path} does not have the hash" in failure(local_hub, tmp_path)
    assert not list(tmp_path.glob(f"{path}*"))


def test_damaged_partial_file_is_fetched_again(interrupted: LocalHub, tmp_path: Path) -> None:
    partial = next(tmp_path.glob("*.partial"))
    partial.write_bytes(bytes(partial.stat().st_size))
    pull(interrupted, tmp_path)
    assert contents(tmp_path) == FILES


def test_partial_file_of_another_commit_is_not_resumed(interrupted: LocalHub, tmp_path: Path) -> None:
    interrupted.repositories["org/name"].files["model.onnx.data"] = changed = WEIGHTS[::-1]
    pull(interrupted, tmp_path)
    assert contents(tmp_path) == FILES | {"model.onnx.data": changed}
    assert ("model.onnx.data", 0) in interrupted.sent


def test_files_that_do_not_belong_to_it_are_removed(local_hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "older.onnx").write_bytes(b"x")
    local_hub.unsized.add("model.onnx.data")  # whose content has no length, and ends
    pull(local_hub, tmp_path)
    assert contents(tmp_path) == FILES


# the disk


def test_lack_of_space_is_reported_before_any_download(
    local_hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=5 * MIB))
    assert "the download needs 24 MiB" in failure(local_hub, tmp_path)
    assert local_hub.sent == []


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A separate file system; skips the test if none can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_leaves_no_model_and_the_pull_can_be_resumed(local_hub: LocalHub, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 30 * MIB) as disk:
        other = disk / "other"

        def fill(path: str) -> None:
            if path == "model.onnx.data":
                other.write_bytes(bytes(14 * MIB))

        local_hub.before_sending = fill
        message = failure(local_hub, disk / "model")
        assert message == f"the disk of {disk / 'model'} is full; free some space, and pull again to continue"
        assert not (disk / "model" / "model.onnx.data").exists()
        other.unlink()
        local_hub.before_sending = lambda _: None
        pull(local_hub, disk / "model")
        assert contents(disk / "model") == FILES


def test_a_full_disk_and_a_folder_that_cannot_be_made_are_named(
    local_hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert str(tmp_path / "file") in failure(local_hub, tmp_path / "file" / "model")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Hub, "fetch", full)
    assert "is full; free some space" in failure(local_hub, tmp_path)


# the hub


def test_an_unknown_repository_and_an_unreachable_hub_are_named(local_hub: LocalHub, tmp_path: Path) -> None:
    del local_hub.repositories["org/name"]
    assert f"there is no org/name on {local_hub.url}" in failure(local_hub, tmp_path)
    with run_hub() as gone:
        pass
    assert f"{gone.url} cannot be reached" in failure(gone, tmp_path)


def test_a_private_repository_needs_a_token_that_the_hub_accepts(local_hub: LocalHub, tmp_path: Path) -> None:
    local_hub.repositories["org/name"].private = True
    assert "or it is private and needs a token" in failure(local_hub, tmp_path)
    pull(local_hub, tmp_path, TOKEN)
    assert contents(tmp_path) == FILES
    message = failure(local_hub, tmp_path, "hf_wrong")
    assert "does not accept the token (--token)" in message
    assert "hf_wrong" not in message


def test_gated_repository_names_the_page_to_agree(local_hub: LocalHub, tmp_path: Path) -> None:
    local_hub.repositories["org/name"].gated = True
    assert f"agree to its terms on {local_hub.url}/org/name" in failure(local_hub, tmp_path)


def test_a_revision_is_a_branch_a_tag_or_a_commit(local_hub: LocalHub, tmp_path: Path) -> None:
    repository = local_hub.repositories["org/name"]
    repository.revisions = ("main", "v1")
    for revision in ("v1", repository.commit):
        pull(local_hub, tmp_path, revision=revision)
    assert 'has no revision "v2"' in failure(local_hub, tmp_path, revision="v2")


def test_progress_callback_sees_bytes_and_can_end_the_download(local_hub: LocalHub, tmp_path: Path) -> None:
    client = Hub(None, local_hub.url)
    repository = client.repository("org/name", None)
    selection = select_model(repository)
    seen: dict[str, list[int]] = {}

    def note(file: RemoteFile, size: int) -> None:
        seen.setdefault(file.path, []).append(size)

    download(client, repository, selection, tmp_path / "whole", note)
    assert {name: sizes[-1] for name, sizes in seen.items()} == {name: len(content) for name, content in FILES.items()}
    sizes = seen["model.onnx.data"]
    assert (sizes[0], sizes, len(sizes) > 2) == (0, sorted(sizes), True)

    def end(file: RemoteFile, size: int) -> None:
        if file.path == "model.onnx.data" and size:
            raise PullFailed("enough")

    with pytest.raises(PullFailed, match="enough"):
        download(client, repository, selection, tmp_path / "cut", end)
    assert list((tmp_path / "cut").glob("model.onnx.data.*.partial"))


@pytest.mark.parametrize("path", ["model.onnx", "model.onnx.data"])
def test_a_file_without_an_end_is_cut_off_at_its_listed_size(local_hub: LocalHub, tmp_path: Path, path: str) -> None:
    local_hub.endless.add(path)
    assert failure(local_hub, tmp_path) == f"{path} is longer than the {len(FILES[path])} bytes that the hub lists"
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) <= sum(map(len, FILES.values()))
    local_hub.endless.clear()
    pull(local_hub, tmp_path)
    assert contents(tmp_path) == FILES


def test_control_characters_of_names_are_shown_escaped(local_hub: LocalHub, tmp_path: Path) -> None:
    name = "a\x1b[2J\nb\u202e.json"
    local_hub.repositories["org/name"].files[name] = b"{}"
    pull(local_hub, tmp_path / "whole")
    assert (tmp_path / "whole" / name).read_bytes() == b"{}"
    local_hub.forged[name] = b"[]"
    assert failure(local_hub, tmp_path / "broken").startswith(r"a\u001b[2J\nb\u202e.json does not have the hash")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"size": None}, '"model.onnx" of org/name with null as its size'),
        ({"size": -1}, '"model.onnx" of org/name with -1 as its size'),
        ({"size": "9"}, '"model.onnx" of org/name with "9" as its size'),
        ({"size": True}, '"model.onnx" of org/name with true as its size'),
        ({"path": "a\0b.json"}, r'"a\u0000b.json" among the files of org/name, which cannot be a file'),
        ({"path": ""}, '"" among the files of org/name'),
        ({"path": None}, "null among the files of org/name"),
        ({"lfs": {"size": 1}}, "sends an invalid response: KeyError"),
        ({"lfs": 7}, "sends an invalid response: TypeError"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_invalid_file_entry_is_an_error_in_one_line(
    local_hub: LocalHub, tmp_path: Path, entry: dict[str, Any], says: str
) -> None:
    local_hub.entries["model.onnx"] = entry
    message = failure(local_hub, tmp_path)
    assert says in message
    assert message.isprintable()
    assert not contents(tmp_path)
