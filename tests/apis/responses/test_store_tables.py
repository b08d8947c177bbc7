"""Files of other versions: older ones are migrated, newer ones are left unchanged."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from genai_server.apis.responses.store_database import RecordDatabase
from genai_server.errors import StoreUnavailable
from genai_server.http.json_response import JsonObject
from tests.apis.responses.test_store_database import CONV, MANY, conversation, got, page_ids, put, response
from tests.apis.responses.test_store_records import record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.sqlite"


# Versions 1 to 3 of the file stored a complete record as one document.
_VERSION_1 = """
    CREATE TABLE records (
        owner TEXT NOT NULL, id TEXT NOT NULL, size INTEGER NOT NULL, used INTEGER NOT NULL, json BLOB NOT NULL,
        PRIMARY KEY (owner, id)
    );
    CREATE INDEX records_by_use ON records (owner, used, size);
    CREATE TABLE items (
        owner TEXT NOT NULL, item TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (owner, item, record)
    ) WITHOUT ROWID;
    CREATE INDEX items_by_record ON items (owner, record);
"""
_VERSION_2 = """
    CREATE TABLE owners (owner TEXT PRIMARY KEY, number INTEGER NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TRIGGER record_added AFTER INSERT ON records BEGIN
        INSERT OR IGNORE INTO owners VALUES (new.owner, 0, 0);
        UPDATE owners SET number = number + 1, size = size + new.size WHERE owner = new.owner;
    END;
    CREATE TRIGGER record_removed AFTER DELETE ON records BEGIN
        UPDATE owners SET number = number - 1, size = size - old.size WHERE owner = old.owner;
        DELETE FROM owners WHERE owner = old.owner AND number = 0;
    END;
"""
_VERSION_3 = """
    CREATE TABLE deleted (
        owner TEXT NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (owner, id)
    ) WITHOUT ROWID;
"""


def _old_file(path: Path, version: int, records: Sequence[JsonObject]) -> None:
    with closing(sqlite3.connect(path)) as old:
        for script in (_VERSION_1, _VERSION_2, _VERSION_3)[:version]:
            old.executescript(script)
        for used, one in enumerate(records):
            text = json.dumps(one).encode()
            row = (one["owner"] or "", one["value"]["id"], len(text), used, text)
            old.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?)", row)
        old.execute(f"PRAGMA user_version = {version}")
        old.commit()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_an_older_version_is_brought_to_this_one(path: Path, version: int) -> None:
    items = [{"id": f"i{number}", "text": "é\udc80", "n": [1.0, None, True]} for number in range(12)]
    output = [{"id": "out", "content": [{"text": 'a "quoted"\n text'}]}]
    value = {"id": "a", "object": "response", "status": "completed", "temperature": 0.0, "output": output}
    end = {"run": "then", "pid": 5, "request": "req", "is_cancelled": False}
    records: list[JsonObject] = [
        {"value": value, "items": items, "owner": "alice", "events": [{"n": 0}, {"n": 1}], **end},
        {"value": conversation(0).value, "items": items, "owner": None, "events": None, **end, "is_cancelled": True},
    ]
    _old_file(path, version, records)
    with closing(RecordDatabase(path, 3, 2_000_000)) as file:
        assert got(file, "a", "alice") == value
        found = [json.loads(item) for item in file.history(response("a", "alice"), MANY).items]  # type: ignore[union-attr]
        assert found == [*items, *output]
        assert file.events(response("a", "alice"), 0) == [b'{"n":1}']
        assert page_ids(file, CONV, order="asc", after="i8") == ["i9", "i10", "i11"]
        stored = file.get(CONV)
        assert stored is not None
        assert (stored.value, stored.run, stored.pid, stored.is_cancelled) == (conversation(0).value, "then", 5, True)
        assert json.loads(file.find_items({"out": 1}, "alice", MANY)["out"]) == output[0]
        test = "SELECT LENGTH(value) + (SELECT SUM(LENGTH(json)) FROM parts WHERE record = key) = size FROM records"
        assert file._open is not None
        assert file._open.execute(test).fetchall() == [(1,), (1,)]
        for id in "xyz":
            put(file, record(id))
        assert got(file, "a", "alice") is not None  # read after the conversation


def test_a_file_of_another_version_is_left_as_it_is(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 7")
    with (
        closing(RecordDatabase(path, 3, 2_000_000)) as file,
        pytest.raises(StoreUnavailable, match="it has version 7"),
    ):
        put(file, record("a"))
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == []
