"""Where responses and conversations are found; a failing disk fails no answer."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator, Set
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genai_server.apis.responses import store as response_store
from genai_server.apis.responses import store_fallback, store_items
from genai_server.apis.responses.store import ResponseStore
from genai_server.apis.responses.store_database import RecordDatabase
from genai_server.apis.responses.store_records import EncodedRecord, KeptResponse, Record, encode_record
from genai_server.errors import (
    ConversationNotFound,
    InvalidField,
    ResponseNotFound,
    StoreUnavailable,
)
from genai_server.http.json_response import JsonObject
from tests.apis.responses.test_store_database import query
from tests.apis.responses.test_store_records import record
from tests.running_server import wait_until

pytestmark = pytest.mark.anyio


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
    return tmp_path / "responses.sqlite"


@pytest.fixture
def file(path: Path) -> Iterator[RecordDatabase]:
    with closing(RecordDatabase(path, 100, 1_000_000)) as file:
        yield file


def damage(path: Path) -> None:
    path.write_bytes(b"junk" * 5000)


def repair(path: Path) -> None:
    path.unlink()


def _conversation(owner: str | None = None) -> Record:
    return Record({"id": "conv", "object": "conversation", "metadata": {}}, [], owner)


async def _keep(store: ResponseStore, ended: Record) -> str | None:
    store.begin(Background(ended))
    return await store.finish(ended)


async def test_running_responses_are_kept_regardless_of_their_number() -> None:
    store = ResponseStore(1, 1000)
    for id in "abc":
        store.begin(running(id))
    assert [(await store.get(id)).response["status"] for id in "abc"] == ["in_progress"] * 3


async def test_a_response_that_is_deleted_while_it_runs_is_not_kept() -> None:
    store = ResponseStore(3, 1000)
    store.begin(running("a"))
    await store.delete("a")
    await store.finish(record("a"))
    with pytest.raises(ResponseNotFound):
        await store.get("a")


async def test_abandoned_response_is_not_kept() -> None:
    store = ResponseStore(3, 1000)
    store.begin(running("a"))
    store.abandon("a")
    await store.finish(record("a"))
    assert await store.find_items({"in_a"}) == {}


@pytest.mark.parametrize("method", ["get", "delete"])
async def test_an_unknown_response_is_not_found(method: str) -> None:
    with pytest.raises(ResponseNotFound, match='"x"'):
        await getattr(ResponseStore(3, 1000), method)("x")


async def test_records_are_visible_only_to_their_owner(file: RecordDatabase) -> None:
    for store in (ResponseStore(9, 9000), ResponseStore(9, 9000, file)):
        store.begin(running("a", "alice"))
        await _keep(store, record("b", owner="alice"))
        await store.put(_conversation("alice"))
        assert set(await store.find_items({"in_a", "in_b"}, "alice")) == {"in_a", "in_b"}
        for stranger in ("bob", None):
            assert await store.find_items({"in_a", "in_b"}, stranger) == {}
            for id in "ab":
                for call in (store.get(id, stranger), store.delete(id, stranger)):
                    with pytest.raises(ResponseNotFound):
                        await call
                with pytest.raises(ResponseNotFound):
                    await store.history("response", id, stranger)
            conv: tuple[str, str | None] = ("conv", stranger)
            calls: list[Coroutine[Any, Any, object]] = [
                store.conversation(*conv),
                store.update_conversation(*conv, dict),
                store.add_items(*conv, [{"id": "x"}]),
                store.remove_item(*conv, "x"),
                store.conversation_item(*conv, "x"),
                store.page("conversation", *conv, query()),
                store.history("conversation", *conv),
                store.delete_conversation(*conv),
            ]
            for conversation_call in calls:
                with pytest.raises(ConversationNotFound):
                    await conversation_call
        assert (await store.get("b", "alice")).response["id"] == "b"


async def test_conversation_and_response_ids_are_distinct() -> None:
    store = ResponseStore(9, 9000)
    await store.put(_conversation())
    await _keep(store, record("a"))
    store.begin(running("b"))
    with pytest.raises(ResponseNotFound):
        await store.get("conv")
    with pytest.raises(ConversationNotFound):
        await store.conversation("a", None)
    for id in "ab":
        with pytest.raises(ConversationNotFound):
            await store.page("conversation", id, None, query())
        with pytest.raises(ConversationNotFound):
            await store.history("conversation", id, None)


async def test_a_response_outlives_the_server_in_the_file(file: RecordDatabase) -> None:
    assert await _keep(ResponseStore(9, 9000, file), record("a")) is None
    assert value_of(await ResponseStore(9, 9000, file).get("a")) == record("a").value


async def test_record_larger_than_the_store_is_reported() -> None:
    assert "GENAI_RESPONSE_STORE_BYTES" in str(await _keep(ResponseStore(9, 100), record("a", text="x" * 200)))


async def test_damaged_file_fails_no_answer_and_is_logged_once(
    file: RecordDatabase, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ResponseStore(9, 9000, file)
    damage(path)
    for id in "ab":
        reason = await _keep(store, record(id))
        assert reason is not None
        assert "file is not a database" in reason
        assert (await store.get(id)).response["id"] == id  # from memory
    with pytest.raises(StoreUnavailable):  # it may be in the file
        await store.get("c")
    repair(path)
    assert await _keep(store, record("c")) is None
    value_of = [entry.getMessage() for entry in caplog.records if "GENAI_RESPONSE_STORE_FILE" in entry.getMessage()]
    assert len(value_of) == 1


async def test_hanging_disk_fails_no_answer(file: RecordDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_fallback, "FILE_TIMEOUT", 0.05)
    is_over, has_ended = threading.Event(), threading.Event()

    def hang(encoded: EncodedRecord) -> None:
        is_over.wait()
        has_ended.set()

    monkeypatch.setattr(file, "put", hang)

    store = ResponseStore(9, 9000, file)
    try:
        reason = await _keep(store, record("a"))
        assert value_of(await store.get("a")) == record("a").value
        assert not has_ended.is_set()
        assert "the store did not respond within" in str(reason)
    finally:
        is_over.set()
    await store.close()
    assert has_ended.is_set()


async def test_record_written_late_is_read_in_its_newest_state(
    file: RecordDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, is_over = file.put, threading.Event()

    def slow(encoded: EncodedRecord) -> None:
        put(encoded)
        is_over.wait(60)

    with monkeypatch.context() as patched:
        patched.setattr(store_fallback, "FILE_TIMEOUT", 0.2)
        patched.setattr(file, "put", slow)
        store = ResponseStore(9, 9000, file)
        assert await store.put(_conversation()) is not None
        is_over.set()
    assert store._records.file is not None
    store._records.file._timeout = 30.0
    while True:
        with suppress(StoreUnavailable):
            await store.add_items("conv", None, [{"id": "new"}])
            break
    assert await store.history("conversation", "conv", None) == [{"id": "new"}]
    await store.close()


async def test_a_response_deleted_while_it_ends_is_not_stored(
    file: RecordDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_deleted, stored = threading.Event(), list[EncodedRecord]()

    def slow(ended: Record) -> EncodedRecord:
        is_deleted.wait(60)
        return encode_record(ended)

    store = ResponseStore(9, 9000, file)
    await store.begin_background(running("a"))
    monkeypatch.setattr(store_fallback, "encode_record", slow)
    monkeypatch.setattr(file, "put", stored.append)
    ending = asyncio.create_task(store.finish(record("a")))
    await asyncio.sleep(0)
    await store.delete("a")
    is_deleted.set()
    await ending
    assert stored == []
    await store.close()


def _many(number: int, text: str = "", role: str = "user") -> Record:
    items = [{"id": f"i{place}", "role": role if place == 0 else "user", "text": text} for place in range(number)]
    return replace(_conversation(), items=items)


async def test_a_page_of_a_running_response_is_one_of_its_items() -> None:
    store = ResponseStore(9, 9000)
    store.begin(Background(replace(record("a", "in_progress"), items=_many(5).items)))
    asked: list[dict[str, Any]] = [{}, {"order": "asc", "limit": 2}, {"limit": 2, "after": "i3"}, {"after": "i0"}]
    found = [await store.page("response", "a", None, query(**given)) for given in asked]
    with pytest.raises(InvalidField, match='given "x"'):
        await store.page("response", "a", None, query(after="x"))
    assert [page.has_more for page in found] == [False, True, True, False]
    assert [[id for id, _ in page.items] for page in found] == [
        ["i4", "i3", "i2", "i1", "i0"],
        ["i0", "i1"],
        ["i2", "i1"],
        [],
    ]


async def test_more_references_than_allowed_are_refused() -> None:
    store = ResponseStore(9, 9000)
    await store.put(_many(1))
    assert len(await store.find_items(["i0"] * response_store.MAX_REFERENCES)) == 1
    with pytest.raises(InvalidField, match="at most 1024 items of type item_reference; given 1025"):
        await store.find_items(["i0"] * (response_store.MAX_REFERENCES + 1))


async def test_references_to_a_running_response_have_a_limit_too() -> None:
    store = ResponseStore(9, 9000, max_body_bytes=100)
    store.begin(Background(replace(record("a", "in_progress"), items=_many(1, text="x" * 500).items)))
    assert await store.find_items(["i0"])
    with pytest.raises(InvalidField, match="at most 800 bytes in total"):
        await store.find_items(["i0", "i0"])


@pytest.mark.parametrize(("role", "kept"), [("system", ["i0", "i8", "i9"]), ("user", ["i8", "i9"])])
async def test_a_long_history_is_refused_or_shortened(role: str, kept: list[str]) -> None:
    store = ResponseStore(9, 90_000, max_body_bytes=1000)
    await store.put(_many(10, text="x" * 900, role=role))
    with pytest.raises(InvalidField, match='"conv" has more than 8000 bytes'):
        await store.history("conversation", "conv", None)
    assert [item["id"] for item in await store.history("conversation", "conv", None, is_shortened=True)] == kept


async def test_a_history_with_images_may_be_as_long_as_their_bodies() -> None:
    store = ResponseStore(9, 90_000, max_body_bytes=1000, max_media_body_bytes=20_000)
    await store.put(_many(10, text="x" * 900))
    assert len(await store.history("conversation", "conv", None)) == 10


async def test_a_stored_stream_is_followed_from_any_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_items, "_MAX_PAGE_EVENTS", 2)

    store = ResponseStore(9, 9000)
    await store.put(replace(record("a"), events=[{"sequence_number": number} for number in range(5)]))
    kept = await store.get("a")
    assert [[event["sequence_number"] async for event in kept.follow(after)] for after in (None, 2, 4)] == [
        [0, 1, 2, 3, 4],
        [3, 4],
        [],
    ]


async def test_a_stream_removed_while_it_is_followed_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_items, "_MAX_PAGE_EVENTS", 1)

    store = ResponseStore(9, 9000)
    await store.put(replace(record("a"), events=[{"sequence_number": number} for number in range(5)]))
    events = (await store.get("a")).follow(None)
    await anext(events)
    await store.delete("a")
    with pytest.raises(ResponseNotFound):
        await anext(events)


async def test_a_response_larger_than_its_keys_share_is_not_stored() -> None:
    store = ResponseStore(9, 3000)
    for owner in ("alice", "bob"):
        await store.put(replace(record(owner, text="x" * 800), owner=owner))
    assert "this API key's share of GENAI_RESPONSE_STORE_BYTES" in str(await store.put(record("a", text="x" * 1500)))


async def test_an_ended_response_that_is_too_large_leaves_nothing(file: RecordDatabase) -> None:
    store = ResponseStore(9, 9000, file, run="now")
    await store.begin_background(running("a"))
    reason = await store.finish(record("a", text="x" * 1_000_000))
    assert "GENAI_RESPONSE_STORE_BYTES" in str(reason)
    with pytest.raises(ResponseNotFound):
        await store.get("a")
    await store.close()


def test_a_store_without_a_size_is_off(file: RecordDatabase) -> None:
    assert not ResponseStore(0, 1000, file).is_on


async def test_a_record_that_is_too_large_is_not_held() -> None:
    store, large = ResponseStore(9, 900), record("a", text="x" * 1000)
    held = weakref.ref(large)
    gc.disable()
    try:
        assert "GENAI_RESPONSE_STORE_BYTES" in str(await store.put(large))
        del large
        wait_until(lambda: held() is None)
    finally:
        gc.enable()
        await store.close()
