"""Records on a disk: which may be full, read-only or damaged, and outlives the server."""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from genai_server.api.generation import record_file
from genai_server.api.generation.record_file import RecordFile
from genai_server.errors import StoreUnavailable
from tests.api.generation.test_records import kept, record

NAME = "responses.sqlite"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / NAME


@pytest.fixture
def file(path: Path) -> Iterator[RecordFile]:
    with closing(RecordFile(path, 1000, 2_000_000)) as file:
        yield file


def test_records_survive_a_restart(file: RecordFile, path: Path) -> None:
    file.put(record("a", text="é", owner="alice"))
    file.close()
    with closing(RecordFile(path, 1000, 2_000_000)) as again:
        assert again.get("a", "alice") == record("a", text="é", owner="alice")
        assert kept(again, "a", owner="alice") == ["a"]


def test_two_processes_share_a_file(file: RecordFile, path: Path) -> None:
    with closing(RecordFile(path, 1000, 2_000_000)) as other:
        other.put(record("a"))
        assert file.get("a") == record("a")
        file.delete("a")
        assert other.get("a") is None


def test_a_response_that_is_deleted_while_it_runs_is_not_stored_however_full_the_file_is(path: Path) -> None:
    with closing(RecordFile(path, 2, 2_000_000)) as file:
        file.put(record("a", "in_progress"))
        assert file.delete("a")
        for id in "bcd":
            file.put(record(id))
        assert file.put(record("a"))
        assert kept(file, *"abcd") == ["c", "d"]
        file.put(record("a"))
        assert kept(file, "a") == ["a"]  # the mark was for one response


def test_the_mark_of_a_response_whose_process_has_died_goes_in_days(
    file: RecordFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def marks() -> list[str]:
        assert file._open is not None
        return [id for (id,) in file._open.execute("SELECT id FROM deleted ORDER BY id")]

    for day, id in ((10, "a"), (11, "b"), (13, "c")):
        now = day * 86_400 * 10**9
        monkeypatch.setattr(record_file, "_now", lambda now=now: now)
        file.put(record(id, "in_progress"))
        file.delete(id)
    assert marks() == ["b", "c"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such bits")
def test_others_cannot_read_the_file(file: RecordFile, path: Path) -> None:
    file.put(record("a"))
    assert {found.stat().st_mode & 0o777 for found in path.parent.iterdir()} == {0o600}


def test_what_is_deleted_is_not_left_in_the_file(file: RecordFile, path: Path) -> None:
    file.put(record("a", text="a secret"))
    file.delete("a")
    file.close()
    assert b"a secret" not in path.read_bytes()


def test_a_file_of_junk_is_named_and_left_as_it_is(file: RecordFile, path: Path) -> None:
    junk = b"junk" * 5000
    path.write_bytes(junk)
    for job in (lambda: file.put(record("a")), lambda: file.get("a"), lambda: file.find_items({"in_a"})):
        with pytest.raises(StoreUnavailable, match=f"{NAME}: file is not a database"):
            job()
    assert path.read_bytes() == junk
    path.unlink()
    assert file.put(record("a"))


def test_a_file_that_is_overwritten_while_it_is_open_is_noticed(file: RecordFile, path: Path) -> None:
    for number in range(50):
        file.put(record(f"r{number}", text="x" * 2000))
    file.close()
    file.get("r1")
    with path.open("r+b") as damaged:
        damaged.seek(0)
        damaged.write(os.urandom(path.stat().st_size))
    with pytest.raises(StoreUnavailable, match=NAME):
        for number in range(50):
            file.get(f"r{number}")
            file.put(record(f"s{number}"))


def test_a_full_disk_loses_only_what_does_not_fit(file: RecordFile) -> None:
    file.put(record("a"))
    assert file._open is not None
    (pages,) = file._open.execute("PRAGMA page_count").fetchone()
    file._open.execute(f"PRAGMA max_page_count = {pages}")  # as SQLite itself reports ENOSPC
    with pytest.raises(StoreUnavailable, match="full"):
        file.put(record("b", text="x" * 100_000))
    assert file.get("a") == record("a")
    assert file.get("b") is None
    assert file.put(record("b", text="x" * 100_000))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="No such file or directory|cannot find"):
        RecordFile(tmp_path / "nowhere" / NAME, 10, 1000).put(record("a"))


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_can_be_read(file: RecordFile, path: Path) -> None:
    file.put(record("a"))
    file.close()
    path.chmod(0o400)
    with pytest.raises(StoreUnavailable):
        file.put(record("b"))


def test_a_file_that_can_only_be_read_takes_nothing(file: RecordFile) -> None:
    file.put(record("a"))
    assert file._open is not None
    file._open.execute("PRAGMA query_only = ON")
    assert file.get("a") == record("a")
    with pytest.raises(StoreUnavailable, match="readonly"):
        file.put(record("b"))


def test_a_file_of_another_version_is_left_as_it_is(file: RecordFile, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreUnavailable, match="it has version 7"):
        file.put(record("a"))


def test_the_file_has_a_largest_size(path: Path) -> None:
    with closing(RecordFile(path, 1000, 2_000_000)) as file:
        for number in range(300):
            file.put(record(f"r{number}", text="x" * 20_000))
        file.close()
    assert path.stat().st_size < 2 * 2_000_000 + 2**20


def test_records_of_small_items_fill_no_file(path: Path) -> None:
    items = [{"id": f"rs_{number:048}", "type": "reasoning", "summary": []} for number in range(1000)]
    with closing(RecordFile(path, 1000, 2_000_000)) as file:
        for number in range(60):
            assert file.put(replace(record(f"resp_{number:048}", owner="a" * 32), items=items))


def test_room_is_made_without_reading_all_records(file: RecordFile) -> None:
    file.put(record("a"))
    assert file._open is not None
    read: list[str] = []
    file._open.set_trace_callback(read.append)
    file.put(record("b"))
    assert any("FROM owners" in statement for statement in read)
    assert not any("FROM records" in statement and "id =" not in statement for statement in read), read


def test_the_sums_of_owners_are_those_of_their_records(path: Path) -> None:
    with closing(RecordFile(path, 5, 2_000_000)) as file:
        for number in range(9):
            file.put(record(f"r{number}", text="x" * number, owner="alice" if number % 3 else None))
        file.put(record("r8", text="longer", owner="alice"))
        file.change("r8", "alice", lambda old: replace(old, items=[]))
        file.delete("r6")
        assert file._open is not None
        sums = "SELECT owner, COUNT(*), SUM(size) FROM records GROUP BY owner"
        assert file._open.execute("SELECT * FROM owners").fetchall() == file._open.execute(sums).fetchall()
        for id in ("r7", "r8"):
            file.delete(id, "alice")


def test_a_file_of_the_first_version_is_brought_to_this_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, closing(RecordFile(path, 3, 2_000_000)) as old:
        patched.setattr(record_file, "_STEPS", record_file._STEPS[:1])
        patched.setattr(old, "_make_room", lambda *_: None)
        with old._writing() as written:
            for id in "abc":
                old._put(written, record(id), record(id).to_json())
    with closing(RecordFile(path, 3, 2_000_000)) as file:
        file.put(record("d"))
        assert kept(file, *"abcd") == ["b", "c", "d"]
