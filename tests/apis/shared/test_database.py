"""A database in a file: what happens to it does not end the process."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from genai_server.apis.files import tables
from genai_server.apis.shared.database import Database, statements
from genai_server.errors import StoreUnavailable


def database(path: Path) -> Database:
    return Database(path, 10_000, tables.prepare, "files", is_durable=True)


def count(opened: Database) -> int:
    with opened.transaction("DEFERRED") as file:
        found: int = file.execute("SELECT COUNT(*) FROM files").fetchone()[0]
        return found


def test_a_failed_transaction_changes_nothing(tmp_path: Path) -> None:
    with closing(database(tmp_path / "index")) as opened:
        with pytest.raises(ZeroDivisionError), opened.transaction("IMMEDIATE") as file:
            file.execute("INSERT INTO files VALUES (1, 'a', '', 0, NULL, '', '', 0, '')")
            raise ZeroDivisionError
        assert count(opened) == 0


def test_a_file_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with closing(database(path)) as opened:
        assert count(opened) == 0
        opened.close()
        path.write_bytes(b"no database" * 100)
        with pytest.raises(StoreUnavailable, match="files cannot be stored in index"):
            count(opened)
        for left in tmp_path.iterdir():
            left.unlink()
        assert count(opened) == 0


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 99")
    with closing(database(path)) as opened, pytest.raises(StoreUnavailable, match="version 99"):
        count(opened)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT COUNT(*) FROM sqlite_master").fetchone() == (0,)


def test_several_processes_create_the_tables_once(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with closing(database(path)) as first, closing(database(path)) as second:
        assert (count(first), count(second)) == (0, 0)


def test_statements_of_a_script_are_found() -> None:
    script = "CREATE TABLE a (b);\nCREATE TRIGGER c AFTER INSERT ON a BEGIN\nDELETE FROM a;\nEND;\n"
    assert [found.strip().partition("\n")[0] for found in statements(script)] == [
        "CREATE TABLE a (b);",
        "CREATE TRIGGER c AFTER INSERT ON a BEGIN",
    ]
