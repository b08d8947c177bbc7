"""Where responses and conversations are found, also by other processes; a failing disk loses no running response."""

import asyncio
import gc
import os
import sqlite3
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Set
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genai_server.apis.responses import store as response_store
from genai_server.apis.responses.schemas import InputItemsParameters
from genai_server.apis.responses.store import EndRequest, KeptResponse, LatestResponse, ResponseStore
from genai_server.errors import (
    ConversationNotFound,
    InvalidField,
    NoEngineReady,
    ResponseNotFound,
    StoreUnavailable,
    Unavailable,
)
from genai_server.http.json_response import JsonObject
from genai_server.store import records
from genai_server.store.database import Database, open_store
from genai_server.store.records import EncodedRecord, Record
from tests.running_server import wait_until
from tests.store.test_records import record

pytestmark = pytest.mark.anyio
MakeStore = Callable[..., ResponseStore]
TwoProcesses = Callable[[EndRequest], tuple[ResponseStore, ResponseStore]]


class Background:
    """The record of a response that runs in the background."""

    def __init__(self, at_first: Record) -> None:
        self.response, self.items = at_first.value, at_first.items
        self.owner, self.request = at_first.owner, at_first.request
        self.progress = None
        self.is_cancelled = False

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        raise AssertionError("not streamed")

    def find_items(self, ids: Set[str]) -> dict[str, JsonObject]:
        items = [*self.items, *self.response["output"]]
        return {item["id"]: item for item in items if item["id"] in ids}

    def cancel(self) -> None:
        self.is_cancelled = True

    async def stop(self) -> None:
        self.cancel()


def running(id: str, owner: str | None = None) -> Background:
    return Background(record(id, "in_progress", owner=owner))


def value_of(kept: KeptResponse) -> JsonObject:
    """A response as its client sees it."""
    response: JsonObject = msgspec.json.decode(msgspec.json.encode(kept.response))
    return response


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
async def make(path: Path) -> AsyncIterator[MakeStore]:
    """Makes stores of several API processes that share a file."""
    opened: list[tuple[ResponseStore, Database]] = []

    def made(size: int = 9, num_bytes: int = 9000, **options: Any) -> ResponseStore:
        database = open_store(path, 1_000_000)
        store = ResponseStore(database, size, num_bytes, **options)
        opened.append((store, database))
        return store

    yield made
    for store, database in opened:
        await store.close()
        await database.close()


@pytest.fixture
def store(make: MakeStore) -> ResponseStore:
    return make()


def query(**given: Any) -> InputItemsParameters:
    return InputItemsParameters.model_validate(given)


async def require(error: type[Exception], *calls: Coroutine[Any, Any, object], match: str | None = None) -> None:
    """Fail unless each call raises this error."""
    for call in calls:
        with pytest.raises(error, match=match):
            await call


def events(number: int) -> list[JsonObject]:
    return [{"sequence_number": place} for place in range(number)]


def _conversation(owner: str | None = None) -> Record:
    return Record({"id": "conv", "object": "conversation", "metadata": {}}, [], owner)


async def _keep(store: ResponseStore, ended: Record) -> str | None:
    store.begin(Background(ended))
    return await store.finish(ended)


async def test_running_responses_are_kept_regardless_of_their_number(make: MakeStore) -> None:
    store = make(1, 1000)
    for id in "abc":
        store.begin(running(id))
    assert [(await store.get(id)).response["status"] for id in "abc"] == ["in_progress"] * 3


async def test_a_response_that_is_deleted_or_abandoned_while_it_runs_is_not_kept(make: MakeStore) -> None:
    store = make(3, 1000)
    for id in "ab":
        store.begin(running(id))
    await store.delete("a")
    store.abandon("b")
    for id in "ab":
        await store.finish(record(id))
        await require(ResponseNotFound, store.get(id))
    assert await store.find_items({"in_a", "in_b"}) == {}


async def test_conversation_and_response_ids_are_distinct(store: ResponseStore) -> None:
    await store.put(_conversation())
    await _keep(store, record("a"))
    store.begin(running("b"))
    await require(ResponseNotFound, store.get("conv"), store.delete("conv"), match='"conv"')
    await require(ConversationNotFound, store.conversation("a", None))
    for id in "ab":
        calls = store.page("conversation", id, None, query()), store.history("conversation", id, None)
        await require(ConversationNotFound, *calls)


def _many(number: int, text: str = "", role: str = "user") -> Record:
    items = [{"id": f"i{place}", "role": role if place == 0 else "user", "text": text} for place in range(number)]
    return replace(_conversation(), items=items)


@pytest.mark.parametrize(
    ("asked", "ids", "has_more"),
    [
        ({}, ["i4", "i3", "i2", "i1", "i0"], False),
        ({"order": "asc", "limit": 2}, ["i0", "i1"], True),
        ({"limit": 2, "after": "i3"}, ["i2", "i1"], True),
        ({"after": "i0"}, [], False),
    ],
)
async def test_a_page_of_a_running_response_is_one_of_its_items(
    store: ResponseStore, asked: dict[str, Any], ids: list[str], has_more: bool
) -> None:
    store.begin(Background(replace(record("a", "in_progress"), items=_many(5).items)))
    page = await store.page("response", "a", None, query(**asked))
    assert ([id for id, _ in page.items], page.has_more) == (ids, has_more)
    await require(InvalidField, store.page("response", "a", None, query(after="x")), match='given "x"')


async def test_references_have_limits_of_number_and_bytes(make: MakeStore) -> None:
    store, most = make(), response_store.MAX_REFERENCES
    await store.put(_many(1))
    assert len(await store.find_items(["i0"] * most)) == 1
    too_many = store.find_items(["i0"] * (most + 1))
    await require(InvalidField, too_many, match="at most 1024 items of type item_reference; given 1025")
    small = make(9, 9000, max_body_bytes=100)
    small.begin(Background(replace(record("a", "in_progress"), items=_many(1, text="x" * 500).items)))
    assert await small.find_items(["i0"])
    await require(InvalidField, small.find_items(["i0", "i0"]), match="at most 800 bytes in total")


@pytest.mark.parametrize(("role", "kept"), [("system", ["i0", "i8", "i9"]), ("user", ["i8", "i9"])])
async def test_a_long_history_is_refused_or_shortened(make: MakeStore, role: str, kept: list[str]) -> None:
    await make(9, 90_000).put(_many(10, text="x" * 900, role=role))
    history = partial(make(9, 90_000, max_body_bytes=1000).history, "conversation", "conv", None)
    await require(InvalidField, history(), match='"conv" has more bytes of items .* 8000')
    assert [item["id"] for item in await history(is_shortened=True)] == kept
    with_images = make(9, 90_000, max_body_bytes=1000, max_media_body_bytes=20_000)
    assert len(await with_images.history("conversation", "conv", None)) == 10


async def test_a_stored_stream_is_followed_from_any_event_until_it_is_removed(
    store: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_MAX_PAGE_EVENTS", 2)
    await store.put(replace(record("a"), events=events(5)))
    kept = await store.get("a")
    for after, left in ((None, events(5)), (2, events(5)[3:]), (4, [])):
        assert [event async for event in kept.follow(after)] == left
    monkeypatch.setattr(records, "_MAX_PAGE_EVENTS", 1)
    following = kept.follow(None)
    await anext(following)
    await store.delete("a")
    with pytest.raises(ResponseNotFound):
        await anext(following)


async def test_records_are_visible_only_to_their_owner(store: ResponseStore) -> None:
    store.begin(running("a", "alice"))
    await _keep(store, record("b", owner="alice"))
    await store.put(_conversation("alice"))
    assert set(await store.find_items({"in_a", "in_b"}, "alice")) == {"in_a", "in_b"}
    for stranger in ("bob", None):
        assert await store.find_items({"in_a", "in_b"}, stranger) == {}
        for id in "ab":
            calls = store.get(id, stranger), store.delete(id, stranger), store.history("response", id, stranger)
            await require(ResponseNotFound, *calls)
        conv: tuple[str, str | None] = ("conv", stranger)
        await require(
            ConversationNotFound,
            store.conversation(*conv),
            store.update_conversation(*conv, dict),
            store.add_items(*conv, [{"id": "x"}]),
            store.remove_item(*conv, "x"),
            store.conversation_item(*conv, "x"),
            store.page("conversation", *conv, query()),
            store.history("conversation", *conv),
            store.delete_conversation(*conv),
        )
    assert (await store.get("b", "alice")).response["id"] == "b"


async def test_a_response_larger_than_its_keys_share_is_not_stored(make: MakeStore) -> None:
    store = make(9, 3000)
    for owner in ("alice", "bob"):
        await store.put(record(owner, text="x" * 800, owner=owner))
    large = store.put(record("a", text="x" * 1500))
    await require(InvalidField, large, match="this API key's share of GENAI_RESPONSE_STORE_BYTES")


async def test_a_background_response_that_is_too_large_leaves_nothing(make: MakeStore) -> None:
    store = make()
    await store.start_background(running("a"))
    assert "GENAI_RESPONSE_STORE_BYTES" in str(await store.finish(record("a", text="x" * 1_000_000)))
    begun = make(9, 100).start_background(Background(record("b", "in_progress", text="x" * 200)))
    await require(InvalidField, begun, match="GENAI_RESPONSE_STORE_BYTES")
    await require(ResponseNotFound, store.get("a"), store.get("b"))


async def test_a_store_without_a_size_is_off(make: MakeStore) -> None:
    assert not make(0).is_on


async def test_a_record_that_is_too_large_is_not_held(make: MakeStore) -> None:
    store, large = make(9, 900), record("a", text="x" * 1000)
    held = weakref.ref(large)
    store.begin(running("a"))
    gc.disable()
    try:
        assert "GENAI_RESPONSE_STORE_BYTES" in str(await store.finish(large))
        del large
        wait_until(lambda: held() is None)
    finally:
        gc.enable()


def test_the_latest_response_is_forgotten_by_its_id_only() -> None:
    latest = LatestResponse(record("a"))
    latest.forget("b")
    assert latest.record is not None
    latest.forget("a")
    assert latest.record is None


# a disk that fails


async def test_damaged_file_fails_no_running_response(store: ResponseStore, path: Path) -> None:
    await asyncio.to_thread(path.write_bytes, b"junk" * 5000)
    assert "file is not a database" in str(await _keep(store, record("a")))
    calls = store.check(None), store.get("a"), store.put(_conversation()), store.start_background(running("b"))
    await require(StoreUnavailable, *calls, match="file is not a database")
    await asyncio.to_thread(path.unlink)
    await store.check(None)
    assert await _keep(store, record("c")) is None
    await require(ResponseNotFound, store.get("b"))


async def test_the_check_finds_a_disk_that_cannot_be_written(store: ResponseStore) -> None:
    await store.put(record("a"))
    await store._database.write(None, lambda rows: rows.execute("PRAGMA query_only = ON"))
    await require(StoreUnavailable, store.check(None), match="readonly")
    assert (await store.get("a")).response["id"] == "a"


async def test_a_background_response_that_cannot_be_deleted_continues(store: ResponseStore) -> None:
    begun = running("a")
    await store.start_background(begun)
    await store._database.write(None, lambda rows: rows.execute("PRAGMA query_only = ON"))
    await require(StoreUnavailable, store.delete("a"), match="readonly")
    assert (await store.get("a"), begun.is_cancelled) == (begun, False)


async def test_a_background_response_is_completed_once_the_disk_works_again(
    make: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_store, "_RETRY_EVERY", 0.01)
    store, large = make(9, 1_000_000), record("a", text="x" * 100_000)

    def limit(factor: int, rows: sqlite3.Connection) -> None:
        (pages,) = rows.execute("PRAGMA page_count").fetchone()
        rows.execute(f"PRAGMA max_page_count = {factor * pages}")

    await store.start_background(running("a"))
    await store._database.read(None, partial(limit, 1))
    assert "full" in str(await store.finish(large))
    await store._database.read(None, partial(limit, 100))
    await asyncio.wait(store._storing)
    assert value_of(await store.get("a")) == large.value


# several processes


def _running(id: str = "a", **fields: Any) -> Record:
    return replace(record(id, "in_progress"), run="now", pid=os.getpid(), request=f"req_{id}", **fields)


@pytest.fixture
def two_processes(make: MakeStore) -> TwoProcesses:
    """The stores of two processes that share a file; the second asks engines to end a request."""

    def stores(end_request: EndRequest) -> tuple[ResponseStore, ResponseStore]:
        return make(run="now"), make(run="now", end_request=end_request)

    return stores


async def test_a_response_of_a_server_that_was_killed_has_failed(make: MakeStore) -> None:
    await make().put(replace(_running(), run="the first"))
    assert (await make(run="the first").get("a")).response["status"] == "in_progress"
    found = (await make(run="the second").get("a")).response
    assert (found["status"], found["error"]["type"]) == ("failed", "server_stopping")


async def test_response_of_another_process_is_cancelled_by_its_request(two_processes: TwoProcesses) -> None:
    async def end(request: str) -> None:
        ended.append(request)
        assert await here.was_ended_by_other_process("a", None)
        await here.finish(record("a", "cancelled", text="half"))

    ended: list[str] = []
    here, there = two_processes(end)
    await here.start_background(Background(_running()))
    assert not await here.was_ended_by_other_process("a", None)
    assert value_of(await there.cancel("a")) == record("a", "cancelled", text="half").value
    assert ended == ["req_a"]


@pytest.mark.parametrize("replies", ["never", "with an error"])
async def test_cancelling_elsewhere_works_though_an_engine_is_silent(two_processes: TwoProcesses, replies: str) -> None:
    async def end(request: str) -> None:
        await here.finish(record("a", "cancelled"))
        if replies == "never":
            await is_over.wait()
        raise NoEngineReady("the engine of device cuda has not answered for 20 s")

    is_over = asyncio.Event()
    here, there = two_processes(end)
    await here.start_background(Background(_running()))
    assert (await there.cancel("a")).response["status"] == "cancelled"
    is_over.set()


async def test_response_that_ends_before_its_cancellation_is_unchanged(two_processes: TwoProcesses) -> None:
    async def end(request: str) -> None:
        await here.finish(record("a"))

    here, there = two_processes(end)
    await here.start_background(Background(_running()))
    await require(InvalidField, there.cancel("a"), match="a cannot be cancelled: it is completed")
    await there.close()
    assert value_of(await here.get("a")) == record("a").value


async def test_late_cancellation_is_reported(two_processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "_CANCEL_TIMEOUT", 0.2)

    async def end(request: str) -> None:
        """No engine has the request."""

    here, there = two_processes(end)
    await here.start_background(Background(_running()))
    await require(Unavailable, there.cancel("a"), match="response a has not ended yet")


async def test_response_deleted_elsewhere_ends_and_stays_deleted(two_processes: TwoProcesses) -> None:
    async def end(request: str) -> None:
        ended.append(request)

    ended: list[str] = []
    here, there = two_processes(end)
    await here.start_background(Background(_running()))
    await there.delete("a")
    assert await here.was_ended_by_other_process("a", None)
    assert await here.finish(record("a", "cancelled")) is None
    for store in (here, there):
        await require(ResponseNotFound, store.get("a"), store.delete("a"))
        assert await store.find_items({"in_a", "out_a"}) == {}
    await there.close()
    assert ended == ["req_a"]


async def test_response_deleted_here_ends_and_leaves_no_record(store: ResponseStore, path: Path) -> None:
    begun = Background(_running())
    await store.start_background(begun)
    await store.delete("a")
    assert begun.is_cancelled
    await store.finish(record("a", "cancelled"))
    with closing(sqlite3.connect(path)) as read:
        assert read.execute("SELECT COUNT(*) FROM records").fetchone() == (0,)


async def test_a_response_deleted_while_it_ends_is_not_stored(
    store: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_deleted = threading.Event()

    def slow(ended: Record) -> EncodedRecord:
        is_deleted.wait(60)
        return EncodedRecord(ended)

    await store.start_background(running("a"))
    monkeypatch.setattr(response_store, "EncodedRecord", slow)
    ending = asyncio.create_task(store.finish(record("a")))
    await asyncio.sleep(0)
    await store.delete("a")
    is_deleted.set()
    assert await ending is None
    assert await store.find_items({"in_a", "out_a"}) == {}


async def test_a_response_whose_process_has_died_has_failed(make: MakeStore) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    await make().put(replace(_running(), pid=process.pid))
    assert (await make(run="now").get("a")).response["status"] == "failed"
