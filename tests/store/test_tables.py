"""Stores of other versions: those of 0.2.0 are migrated, others are left unchanged.

The SQL in `written_by_0_2_0` is a dump of the files that 0.2.0 wrote for `GENAI_RESPONSE_STORE_FILE` and
`GENAI_FILES_DIR`.
"""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from genai_server.errors import StoreUnavailable
from genai_server.store.batches import BatchStore
from genai_server.store.database import INDEX_NAME, VERSION, Database, open_store
from genai_server.store.files import FileLimits, FileStore
from tests.store.test_records import CONV, MANY, Store, got, page_ids, put, record, response

pytestmark = pytest.mark.anyio
DUMPS = Path(__file__).parent / "written_by_0_2_0"
INPUT, OUTPUT = "file-3b4ea4fce2def0c1730c32f8", "file-069878eccd851d2b31a3b01a"
ENDED, OPEN = "batch_f685f2a2f02dc8b46a407d91", "batch_8b627745603b80baf81dee8c"


def restore(dump: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as old:
        old.execute("PRAGMA journal_mode = WAL")
        old.executescript((DUMPS / dump).read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GENAI_FILES_DIR of 0.2.0."""
    folder = tmp_path / "files"
    folder.mkdir()
    restore("index.sql", folder / INDEX_NAME)
    return folder


@pytest.fixture
async def database(folder: Path) -> AsyncIterator[Database]:
    opened = open_store(folder / "store.sqlite", 2_000_000, folder)
    yield opened
    await opened.close()


def test_responses_of_0_2_0_are_migrated(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    restore("responses.sql", path)
    with closing(Store(path, 3)) as store:
        found = got(store, "a", "alice")
        assert found is not None
        assert (found["status"], found["output"][0]["content"]) == ("completed", [{"text": 'a "quoted"\n text'}])
        items = [json.loads(item)["id"] for item in store.history(response("a", "alice"), MANY).items]
        assert items == ["i0", "i1", "out_a"]
        assert store.events(response("a", "alice"), 0) == [b'{"n":1}']
        assert page_ids(store, CONV, order="asc", after="i8") == ["i9", "i10", "i11"]
        assert store.get(CONV).value == {"id": "conv", "object": "conversation", "metadata": {"a": "b"}}
        running = store.get(response("b"))
        assert (running.value["status"], running.run, running.pid, running.request) == ("in_progress", "then", 5, "req")
        for id in "xyz":
            put(store, record(id))
        assert got(store, "a", "alice") is not None  # the share of alice has one record
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert file.execute("SELECT COUNT(*) FROM batches").fetchone() == (0,)


async def test_files_and_batches_of_0_2_0_move_to_the_store(database: Database, folder: Path) -> None:
    files = FileStore(database, folder, FileLimits(10**6, 10**7))
    batches = BatchStore(files)
    assert (await files.get(INPUT, "alice")).name == "input.jsonl"
    page, _ = await files.page("alice", after=None, limit=9, order="asc", purpose=None)
    assert [file.id for file in page] == [INPUT, OUTPUT]
    ended = await batches.get(ENDED, "alice")
    assert (ended["status"], ended["output_file_id"]) == ("completed", OUTPUT)
    (batch,) = await batches.open()
    assert (batch.id, batch.owner, batch.endpoint, batch.keeps) == (OPEN, "", "/v1/completions", 2_592_000)
    await batches.end(batch, {"status": "completed"}, (5, 0))
    assert (await files.get(batch.output, "")).size == 5
    assert not (folder / INDEX_NAME).exists()


async def test_a_response_file_that_was_moved_to_the_folder_is_joined_with_its_files(folder: Path) -> None:
    restore("responses.sql", folder / "store.sqlite")
    database = open_store(folder / "store.sqlite", 2_000_000, folder)
    files = FileStore(database, folder, FileLimits(10**6, 10**7))
    assert (await files.get(INPUT, "alice")).size == 3
    assert await database.read(None, lambda rows: rows.execute("SELECT COUNT(*) FROM records").fetchone()) == (3,)
    await database.close()


async def test_a_crash_before_the_old_index_was_removed_repeats_nothing(database: Database, folder: Path) -> None:
    files = FileStore(database, folder, FileLimits(10**6, 10**7))
    batches = BatchStore(files)
    (batch,) = await batches.open()
    await batches.end(batch, {"status": "completed"}, (5, 0))
    await database.close()
    restore("index.sql", folder / INDEX_NAME)
    again = open_store(folder / "store.sqlite", 2_000_000, folder)
    batches = BatchStore(FileStore(again, folder, FileLimits(10**6, 10**7)))
    assert await batches.open() == []
    assert not (folder / INDEX_NAME).exists()
    await again.close()


async def test_an_index_of_another_version_stops_the_migration(database: Database, folder: Path) -> None:
    with closing(sqlite3.connect(folder / INDEX_NAME)) as index:
        index.execute("PRAGMA user_version = 2")
    with pytest.raises(StoreUnavailable, match="index has version 2, but this server supports version 1"):
        await database.read(None, lambda rows: None)
    assert (folder / INDEX_NAME).exists()


@pytest.mark.parametrize("version", [3, VERSION + 1])
def test_a_store_of_another_version_is_left_as_it_is(tmp_path: Path, version: int) -> None:
    path = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {version}")
    with (
        closing(Store(path)) as store,
        pytest.raises(StoreUnavailable, match=f"version {version}, .* versions 4 and 5"),
    ):
        put(store, record("a"))
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == []
