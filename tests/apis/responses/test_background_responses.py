"""Responses in the background are found and ended from any process."""

import asyncio
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genai_server.apis.responses import background_responses
from genai_server.apis.responses.background_responses import EndRequest
from genai_server.apis.responses.store import ResponseStore
from genai_server.apis.responses.store_database import RecordDatabase
from genai_server.apis.responses.store_records import Record, encode_record
from genai_server.errors import InvalidField, NoEngineReady, ResponseNotFound, Unavailable
from tests.apis.responses.test_store import Background, value_of
from tests.apis.responses.test_store_records import record

pytestmark = pytest.mark.anyio

TwoProcesses = Callable[[EndRequest], tuple[ResponseStore, ResponseStore]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.sqlite"


@pytest.fixture
def file(path: Path) -> Iterator[RecordDatabase]:
    with closing(RecordDatabase(path, 100, 1_000_000)) as file:
        yield file


@pytest.fixture
def others_file(path: Path) -> Iterator[RecordDatabase]:
    """The same file, opened by another process."""
    with closing(RecordDatabase(path, 100, 1_000_000)) as file:
        yield file


def _running(id: str = "a", **fields: Any) -> Record:
    return replace(record(id, "in_progress"), run="now", pid=os.getpid(), request=f"req_{id}", **fields)


@pytest.fixture
def two_processes(file: RecordDatabase, others_file: RecordDatabase) -> TwoProcesses:
    """The stores of two processes that share a file; the second asks engines to end a request."""

    def stores(end_request: EndRequest) -> tuple[ResponseStore, ResponseStore]:
        other = ResponseStore(9, 9000, others_file, run="now", end_request=end_request)
        return ResponseStore(9, 9000, file, run="now"), other

    return stores


async def test_a_response_of_a_server_that_was_killed_has_failed(file: RecordDatabase) -> None:
    begun = replace(_running(), run="the first")
    file.put(encode_record(begun))
    assert (await ResponseStore(9, 9000, file, run="the first").get("a")).response["status"] == "in_progress"
    found = (await ResponseStore(9, 9000, file, run="the second").get("a")).response
    assert (found["status"], found["error"]["type"]) == ("failed", "server_stopping")


async def test_response_of_another_process_is_cancelled_by_its_request(two_processes: TwoProcesses) -> None:
    async def end(request: str) -> None:
        ended.append(request)
        assert await here.background.was_ended_elsewhere("a", None)
        await here.finish(record("a", "cancelled", text="half"))

    ended: list[str] = []
    here, there = two_processes(end)
    await here.begin_background(Background(_running()))
    assert not await here.background.was_ended_elsewhere("a", None)
    assert value_of(await there.cancel("a")) == record("a", "cancelled", text="half").value
    assert ended == ["req_a"]


@pytest.mark.parametrize("replies", ["never", "with an error"])
async def test_cancelling_elsewhere_works_though_an_engine_is_silent(two_processes: TwoProcesses, replies: str) -> None:
    async def end(request: str) -> None:
        await here.finish(record("a", "cancelled"))
        if replies == "never":
            await asyncio.Event().wait()
        raise NoEngineReady("the engine of device cuda has not answered for 20 s")

    here, there = two_processes(end)
    await here.begin_background(Background(_running()))
    assert (await there.cancel("a")).response["status"] == "cancelled"


async def test_response_that_ends_before_its_cancellation_is_unchanged(two_processes: TwoProcesses) -> None:
    async def end(request: str) -> None:
        await here.finish(record("a"))

    here, there = two_processes(end)
    await here.begin_background(Background(_running()))
    with pytest.raises(InvalidField, match="a is completed"):
        await there.cancel("a")
    await there.close()
    assert value_of(await here.get("a")) == record("a").value


async def test_late_cancellation_is_reported(two_processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_responses, "_CANCEL_TIMEOUT", 0.2)

    async def end(request: str) -> None:
        """No engine has the request."""

    here, there = two_processes(end)
    await here.begin_background(Background(_running()))
    with pytest.raises(Unavailable, match="response a has not ended yet"):
        await there.cancel("a")


async def test_response_deleted_elsewhere_ends_and_stays_deleted(
    two_processes: TwoProcesses, others_file: RecordDatabase
) -> None:
    async def end(request: str) -> None:
        ended.append(request)

    ended: list[str] = []
    here, there = two_processes(end)
    await here.begin_background(Background(_running()))
    await there.delete("a")
    assert await here.background.was_ended_elsewhere("a", None)
    assert await here.finish(record("a", "cancelled")) is None
    for store in (here, there):
        with pytest.raises(ResponseNotFound):
            await store.get("a")
        with pytest.raises(ResponseNotFound):
            await store.delete("a")
        assert await store.find_items({"in_a", "out_a"}) == {}
    await there.close()
    assert ended == ["req_a"]


async def test_response_deleted_here_ends_and_leaves_no_record(file: RecordDatabase) -> None:
    store = ResponseStore(9, 9000, file, run="now")
    begun = Background(_running())
    await store.begin_background(begun)
    await store.delete("a")
    assert begun.is_cancelled
    await store.finish(record("a", "cancelled"))
    await store.close()
    assert file._path is not None
    with closing(sqlite3.connect(file._path)) as read:
        assert read.execute("SELECT COUNT(*) FROM records").fetchone() == (0,)


async def test_a_response_whose_process_has_died_has_failed(file: RecordDatabase) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    file.put(encode_record(replace(_running(), pid=process.pid)))
    assert (await ResponseStore(9, 9000, file, run="now").get("a")).response["status"] == "failed"
