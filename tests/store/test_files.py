"""What the store of files removes on its own, and what it keeps."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from genai_server.apis.batches.routes import BatchRequest, new_batch
from genai_server.errors import InvalidField, StoredFileNotFound, StoreUnavailable
from genai_server.store.batches import BatchStore
from genai_server.store.database import open_store
from genai_server.store.files import FileLimits, FileStore, StoredFile, new_id

pytestmark = pytest.mark.anyio
LIMITS = FileLimits(10**6, 10**7)


@asynccontextmanager
async def opened(tmp_path: Path, limits: FileLimits = LIMITS) -> AsyncIterator[FileStore]:
    database = open_store(tmp_path / "files" / "store.sqlite", 10**6, tmp_path / "files")
    yield FileStore(database, tmp_path / "files", limits)
    await database.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    async with opened(tmp_path) as found:
        yield found


async def add(store: FileStore, folder: Path, seconds: int = 100, owner: str = "alice") -> StoredFile:
    upload = folder / "upload"
    upload.write_bytes(b"{}\n")
    return await store.add(upload, "input.jsonl", "batch", owner, seconds)


def contents(store: FileStore, *files: StoredFile) -> list[bool]:
    return [store.content(file.id).exists() for file in files]


async def test_an_expired_file_is_gone_at_once_and_removed_later(store: FileStore, tmp_path: Path) -> None:
    kept, expired = await add(store, tmp_path), await add(store, tmp_path, -1)
    with pytest.raises(StoredFileNotFound):
        await store.get(expired.id, "alice")
    for file in (kept, expired):
        os.utime(store.content(file.id), (0, 0))
    await store.remove_expired()
    assert contents(store, kept, expired) == [True, False]
    page, _ = await store.page("alice", after=None, limit=10, order="desc", purpose=None)
    assert page == [kept]


async def test_the_input_of_an_open_batch_stays(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await add(store, tmp_path)
    batches = BatchStore(store)
    given = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
    body = BatchRequest.model_validate(given)
    await batches.create(new_batch(body, "alice"))
    later = time.time() + 1000
    monkeypatch.setattr(time, "time", lambda: later)
    os.utime(store.content(file.id), (0, 0))
    await store.remove_expired()
    assert contents(store, file) == [True]
    (batch,) = await batches.open()
    await batches.end(batch, {"status": "cancelled"}, (0, 0))
    await store.remove_expired()
    assert contents(store, file) == [False]


async def test_contents_of_no_file_are_removed_once_they_are_old(store: FileStore) -> None:
    old, new, foreign = store.content(new_id("file")), store.content(new_id("file")), store.content("file-notes")
    for path in (old, new, foreign):
        path.write_bytes(b"x")
    for path in (old, foreign):
        os.utime(path, (0, 0))
    await store.remove_expired()
    assert [path.exists() for path in (old, new, foreign)] == [False, True, True]


async def test_a_key_cannot_fill_the_database_with_empty_files(tmp_path: Path) -> None:
    async with opened(tmp_path, FileLimits(10**6, 10**7, files=2)) as store:
        for _ in range(2):
            file = await add(store, tmp_path)
        with pytest.raises(InvalidField, match="at most 2 files, and has 2"):
            await add(store, tmp_path)
        assert len(list((tmp_path / "files" / "contents").iterdir())) == 2
        await store.delete(file.id, "alice")
        await add(store, tmp_path)


async def test_a_file_that_cannot_be_noted_is_not_kept(store: FileStore, tmp_path: Path) -> None:
    (tmp_path / "files" / "store.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(StoreUnavailable):
        await add(store, tmp_path)
    assert list((tmp_path / "files" / "contents").iterdir()) == []


async def test_files_survive_a_restart(store: FileStore, tmp_path: Path) -> None:
    file = await add(store, tmp_path)
    async with opened(tmp_path) as again:
        assert await again.get(file.id, "alice") == file
        assert again.content(file.id).read_bytes() == b"{}\n"
