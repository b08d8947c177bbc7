"""What is stored of responses and conversations, and for how long. The file may be full or read-only."""

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import InvalidField, StoreUnavailable
from genai_server.store import records
from genai_server.store.database import JsonObject, open_store
from genai_server.store.records import (
    EVENT,
    ITEM,
    OUTPUT,
    EncodedRecord,
    Key,
    Record,
    Records,
    Row,
    encode_items,
    to_json,
)

MANY = 10**9
_WRITES = {"put", "complete", "evict", "delete", "set_value", "append", "remove_item", "mark_cancelled"}


class Store:
    """A store whose records are used without its thread: each method of Records is a transaction."""

    def __init__(self, path: Path, size: int = 1000, num_bytes: int = 2_000_000) -> None:
        self.database = open_store(path, num_bytes)
        self._records = Records(size, num_bytes)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            with self.database.transaction("IMMEDIATE" if name in _WRITES else "DEFERRED") as rows:
                return getattr(self._records, name)(rows, *args, **named)

        return call

    @property
    def connection(self) -> sqlite3.Connection:
        assert self.database._connection is not None
        return self.database._connection

    def close(self) -> None:
        self.database.disconnect()


Make = Callable[..., Store]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def file(path: Path) -> Iterator[Store]:
    with closing(Store(path)) as file:
        yield file


@pytest.fixture
def database(request: pytest.FixtureRequest, path: Path) -> Make:
    def make(*ids: str, size: int = 3, num_bytes: int = 100_000) -> Store:
        made = Store(path, size, num_bytes)
        request.addfinalizer(made.close)
        for id in ids:
            put(made, record(id))
        return made

    return make


def record(id: str, status: str = "completed", text: str = "", owner: str | None = None) -> Record:
    output = [{"id": f"out_{id}", "text": text}]
    value = {"id": id, "object": "response", "status": status, "output": output}
    return Record(value, [{"id": f"in_{id}"}], owner)


def put(database: Store, stored: Record) -> None:
    database.put(EncodedRecord(stored))
    make_room(database, stored.owner)


def make_room(database: Store, owner: str | None = None) -> list[str]:
    evicted = []
    while (id := database.evict(owner)) is not None:
        evicted.append(id)
    return evicted


def conversation(num_items: int, text: str = "", owner: str | None = None) -> Record:
    items = [{"id": f"i{number}", "role": "user", "text": text} for number in range(num_items)]
    return Record({"id": "conv", "object": "conversation", "metadata": {}}, items, owner)


CONV = Key("conversation", "conv", None)


def response(id: str, owner: str | None = None) -> Key:
    return Key("response", id, owner)


def got(database: Store, id: str, owner: str | None = None) -> JsonObject | None:
    """A response as a client sees it."""
    found = database.get(response(id, owner))
    if found is None:
        return None
    return {**found.value, "output": [json.loads(bytes(item)) for item in found.value["output"]]}


def kept(database: Store, *ids: str, owner: str | None = None) -> list[str]:
    return [id for id in ids if database.find_items({f"in_{id}": 1}, owner, MANY)]


def page(database: Store, key: Key, **given: Any) -> Any:
    return database.page(key, **{"order": "desc", "after": None, "limit": 20, **given})


def page_ids(database: Store, key: Key, **given: Any) -> list[str]:
    return [id for id, _ in page(database, key, **given).items]


def history(database: Store, key: Key, **given: Any) -> list[str]:
    found = database.history(key, **{"max_bytes": MANY, **given})
    return [json.loads(item)["id"] for item in found.items]


# the encoded form


def test_each_item_and_event_is_a_row_of_json() -> None:
    stored = EncodedRecord(Record(record("a").value, [{"id": "in_a"}], events=[{"type": "x"}]))
    assert json.loads(stored.head) == {**record("a").value, "output": []}
    assert stored.rows == [
        Row(ITEM, "in_a", b'{"id":"in_a"}'),
        Row(OUTPUT, "out_a", b'{"id":"out_a","text":""}'),
        Row(EVENT, None, b'{"type":"x"}'),
    ]
    assert json.loads(to_json({"a": "é\udc80"})) == {"a": "é\udc80"}


# limits


def test_the_record_used_last_is_kept_longest(database: Make) -> None:
    store = database("a", "b", "c")
    assert got(store, "a") == record("a").value
    put(store, record("d"))
    assert kept(store, "a", "b", "c", "d") == ["a", "c", "d"]


def test_all_records_together_have_a_size(database: Make) -> None:
    store = database(num_bytes=3000)
    for id in "abcd":
        put(store, record(id, text="x" * 1000))
    assert kept(store, "a", "b", "c", "d") == ["c", "d"]
    assert store.delete("c", None)
    put(store, record("e", text="x" * 1000))
    assert kept(store, "c", "d", "e") == ["d", "e"]


def test_a_record_larger_than_the_limit_evicts_none(database: Make) -> None:
    store = database("a", num_bytes=1000)
    with pytest.raises(InvalidField, match="at most 1000 bytes .GENAI_RESPONSE_STORE_BYTES"):
        put(store, record("b", text="x" * 1000))
    assert kept(store, "a", "b") == ["a"]


def test_a_record_has_a_largest_number_of_items(database: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_ROWS", 3)
    store = database()
    with pytest.raises(InvalidField, match="at most 3 items and events; given 4"):
        put(store, conversation(4))
    put(store, conversation(2))
    with pytest.raises(InvalidField, match="given 4"):
        store.append(CONV, encode_items([{"id": "x"}, {"id": "y"}]))
    assert history(store, CONV) == ["i0", "i1"]


def test_owner_with_most_records_is_evicted_from(database: Make) -> None:
    store = database()
    put(store, record("a", owner="alice"))
    for id in "bcde":
        put(store, record(id, owner="bob"))
    assert kept(store, *"bcde", owner="bob") == ["d", "e"]
    assert kept(store, "a", owner="alice") == ["a"]
    for id in "fg":
        put(store, record(id, owner="alice"))
    assert kept(store, *"afg", owner="alice") == ["f", "g"]
    assert kept(store, *"de", owner="bob") == ["e"]


def test_an_owner_of_large_records_evicts_no_small_ones(database: Make) -> None:
    store = database("a", "b", "c", size=100, num_bytes=3000)
    for id in "lm":
        put(store, record(id, text="x" * 1500, owner="alice"))
    assert kept(store, "a", "b", "c") == ["a", "b", "c"]
    assert got(store, "l", "alice") is None
    assert got(store, "m", "alice") is not None


def test_one_eviction_removes_one_record(database: Make) -> None:
    store = database("a", "b", "c", num_bytes=2000)
    store.put(EncodedRecord(record("d", text="x" * 1800)))
    assert store.evict(None) == "a"
    assert kept(store, *"abcd") == ["b", "c", "d"]
    assert make_room(store) == ["b"]


def test_a_conversation_that_grows_evicts_others_up_to_its_own_limit(database: Make) -> None:
    store = database("a", num_bytes=1000)
    put(store, conversation(1))
    with pytest.raises(InvalidField, match="at most 1000 bytes .GENAI_RESPONSE_STORE_BYTES"):
        store.append(CONV, encode_items([{"id": "x" * 1000}]))
    assert history(store, CONV) == ["i0"]
    assert store.append(CONV, encode_items([{"id": "x" * 850}]))
    assert make_room(store) == ["a"]


def test_a_running_response_is_evicted_last(database: Make) -> None:
    store = database()
    put(store, replace(record("a", "in_progress"), run="now"))
    for id in "bcd":
        put(store, record(id))
    assert kept(store, *"abcd") == ["a", "c", "d"]
    assert store.complete(EncodedRecord(record("a", text="end")))
    got(store, "c")
    got(store, "d")
    put(store, record("e"))
    assert kept(store, *"acde") == ["c", "d", "e"]


# look-ups


def test_a_record_is_visible_to_its_owner_only(database: Make) -> None:
    store = database()
    put(store, record("a", owner="alice"))
    put(store, conversation(1, owner="alice"))
    assert got(store, "a", "alice") == record("a").value
    for stranger in ("bob", None):
        for key in (response("a", stranger), Key("conversation", "conv", stranger)):
            assert store.get(key) is None
            assert page(store, key) is None
            assert store.history(key, MANY) is None
            assert store.item(key, "i0") is None
            assert store.events(key, -1) is None
            assert not store.append(key, encode_items([{"id": "x"}]))
            assert not store.remove_item(key, "i0")
            assert store.set_value(key, dict) is None
            assert not store.delete(key.id, stranger)
        assert not store.complete(EncodedRecord(record("a", owner=stranger)))
        assert store.find_items({"in_a": 1, "i0": 1}, stranger, MANY) == {}
    assert store.delete("a", "alice")
    assert store.find_items({"in_a": 1}, "alice", MANY) == {}


def test_conversation_id_is_not_a_response_id(database: Make) -> None:
    store = database("a")
    put(store, conversation(1))
    assert store.get(response("conv")) is None
    assert store.get(Key("conversation", "a", None)) is None


def test_an_item_of_several_records_is_the_newest(database: Make) -> None:
    store = database()
    for id, text in (("a", "old"), ("b", "new")):
        put(store, Record({"id": id, "object": "conversation"}, [{"id": "x", "text": text}]))
    assert json.loads(store.find_items({"x": 1}, None, MANY)["x"])["text"] == "new"
    assert json.loads(store.item(Key("conversation", "a", None), "x") or b"")["text"] == "old"


def test_references_count_each_time_and_are_read_once(database: Make) -> None:
    store = database("a", num_bytes=20_000_000)
    size = len(b'{"id":"in_a"}')
    assert store.find_items({"in_a": 3}, None, 3 * size)
    with pytest.raises(InvalidField, match=f"at most {3 * size - 1} bytes"):
        store.find_items({"in_a": 3}, None, 3 * size - 1)
    put(store, conversation(4000, text="x" * 3000))
    rows: list[Any] = []

    def note(cursor: sqlite3.Cursor, row: Any) -> Any:
        rows.append(row)
        return row

    store.connection.row_factory = note
    wanted = Counter(f"i{number}" for number in range(1000))
    assert len(store.find_items(wanted, None, MANY)) == len(rows) == 1000


def test_pages_have_the_requested_items(database: Make) -> None:
    store = database()
    put(store, conversation(5))
    assert page_ids(store, CONV) == ["i4", "i3", "i2", "i1", "i0"]
    assert page_ids(store, CONV, order="asc", limit=2) == ["i0", "i1"]
    assert page_ids(store, CONV, order="asc", limit=2, after="i1") == ["i2", "i3"]
    assert page_ids(store, CONV, limit=2, after="i3") == ["i2", "i1"]
    assert page_ids(store, CONV, after="i0") == []
    with pytest.raises(InvalidField, match='after must be the id of an input item; given "x"'):
        page_ids(store, CONV, after="x")
    assert [page(store, CONV, limit=limit).has_more for limit in (4, 5)] == [True, False]


def test_a_page_of_large_items_ends_early(database: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = database()
    put(store, conversation(9, text="x" * 1000))
    monkeypatch.setattr(records, "MAX_PAGE_BYTES", 3000)
    assert page_ids(store, CONV, order="asc") == ["i0", "i1"]
    monkeypatch.setattr(records, "MAX_PAGE_BYTES", 10)  # a page has at least one item
    assert page_ids(store, CONV, order="asc", after="i7") == ["i8"]


def test_a_history_that_is_too_large_is_refused_or_cut(database: Make) -> None:
    store = database()
    put(store, conversation(9, text="x" * 1000))
    with pytest.raises(InvalidField, match='"conv" has more bytes of items .* 2500'):
        history(store, CONV, max_bytes=2500)
    found = store.history(CONV, 5000, is_shortened=True)
    assert [json.loads(item)["id"] for item in (found.first, *found.items)] == ["i0", "i7", "i8"]


def test_events_are_read_from_a_place_on(database: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = database("b")
    put(store, replace(record("a"), events=[{"number": number} for number in range(5)]))
    assert [store.get(response(id)).has_events for id in "ab"] == [True, False]
    monkeypatch.setattr(records, "_MAX_PAGE_EVENTS", 2)
    for after, numbers in ((-1, [0, 1]), (1, [2, 3]), (3, [4]), (4, [])):
        events = store.events(response("a"), after)
        assert [json.loads(event)["number"] for event in events or []] == numbers


# changes


def test_items_are_added_and_removed(database: Make) -> None:
    store = database()
    put(store, conversation(3))
    assert store.remove_item(CONV, "i2")
    assert not store.remove_item(CONV, "i2")
    assert store.append(CONV, encode_items([{"id": "new"}, {"id": "i0"}]))
    assert history(store, CONV) == ["i0", "i1", "new", "i0"]
    assert store.remove_item(CONV, "i0")  # the first of two
    assert history(store, CONV) == ["i1", "new", "i0"]
    assert page_ids(store, CONV, order="asc", after="new") == ["i0"]


def test_a_value_is_changed_or_stays_as_it_was(database: Make) -> None:
    store = database(num_bytes=1000)
    put(store, conversation(1))
    changed = store.set_value(CONV, lambda old: {**old, "metadata": {"a": "b"}})
    assert changed == {"id": "conv", "object": "conversation", "metadata": {"a": "b"}}

    def fails(old: JsonObject) -> JsonObject:
        raise InvalidField(None, "no")

    for change in (fails, lambda old: {**old, "metadata": {"a": "x" * 1000}}):
        with pytest.raises(InvalidField):
            store.set_value(CONV, change)
    assert store.get(CONV).value == changed


def test_a_record_takes_the_place_of_the_one_before(database: Make) -> None:
    store = database("a", "b")
    put(store, record("a", text="new"))
    assert got(store, "a") == record("a", text="new").value
    assert kept(store, "a", "b") == ["a", "b"]


def test_a_response_deleted_while_it_runs_is_not_stored(database: Make) -> None:
    store = database()
    put(store, replace(record("a", "in_progress"), run="now"))
    assert store.delete("a", None)
    assert not store.complete(EncodedRecord(record("a")))
    assert kept(store, "a") == []


def test_sums_of_owners_are_those_of_their_records(database: Make) -> None:
    store = database(size=5)
    for number in range(9):
        put(store, record(f"r{number}", text="é" * number, owner="alice" if number % 3 else None))
    put(store, record("r8", text="longer", owner="alice"))
    put(store, conversation(3))
    store.append(CONV, encode_items([{"id": "new"}]))
    store.remove_item(CONV, "i1")
    store.set_value(CONV, lambda old: {**old, "metadata": {"a": "b"}})
    store.delete("r6", None)
    sums = "SELECT owner, COUNT(*), SUM(size) FROM records GROUP BY owner"
    assert store.connection.execute("SELECT * FROM owners").fetchall() == store.connection.execute(sums).fetchall()
    sizes = "SELECT LENGTH(value) + (SELECT SUM(LENGTH(json)) FROM parts WHERE record = key) FROM records"
    assert store.connection.execute("SELECT size FROM records").fetchall() == store.connection.execute(sizes).fetchall()


# counted work


ACCESSES: dict[str, Callable[[Store], Any]] = {
    "get": lambda store: store.get(CONV),
    "item": lambda store: store.item(CONV, "i500"),
    "page": lambda store: page_ids(store, CONV, after="i500", limit=3),
    "references": lambda store: store.find_items({"i1": 1, "i900": 1}, None, MANY),
    "a history that is cut": lambda store: store.history(CONV, 3000, is_shortened=True),
    "append": lambda store: store.append(CONV, encode_items([{"id": "new"}])),
    "remove": lambda store: store.remove_item(CONV, "i500"),
    "value": lambda store: store.set_value(CONV, lambda old: {**old, "metadata": {"a": "b"}}),
    "another owner's put": lambda store: put(store, record("a", owner="alice")),
}


@pytest.mark.parametrize("access", ACCESSES)
def test_an_access_reads_what_it_returns(database: Make, access: str) -> None:
    store = database(num_bytes=10_000_000)
    put(store, conversation(1000, text="x" * 1000))
    read: list[int] = []
    steps: list[str] = []

    def count(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        read.append(sum(len(value) for value in row if isinstance(value, bytes)))
        return row

    store.connection.row_factory = count
    store.connection.set_trace_callback(steps.append)
    work = [0]

    def step() -> int:
        work[0] += 1
        return 0

    store.connection.set_progress_handler(step, 100)
    ACCESSES[access](store)
    assert sum(read) < 6000, "bytes of rows"
    assert len(read) < 20, "rows"
    assert len(steps) < 25, "statements"
    assert work[0] < 20, "hundreds of instructions; each of the 1,000 items would take several"


def test_a_deadline_stops_the_work(database: Make) -> None:
    store = database(num_bytes=10_000_000)
    put(store, conversation(2000, text="x" * 1000))
    store.database._deadline = time.monotonic() - 1
    for access in (partial(store.history, CONV, MANY), partial(store.delete, "conv", None)):
        with pytest.raises(StoreUnavailable, match="interrupted"):
            access()
    store.database._deadline = float("inf")
    assert len(history(store, CONV)) == 2000


# the file


def test_records_survive_a_restart(file: Store, path: Path) -> None:
    put(file, record("a", text="é", owner="alice"))
    file.close()
    with closing(Store(path)) as again:
        assert got(again, "a", "alice") == record("a", text="é").value
        assert kept(again, "a", owner="alice") == ["a"]


def test_deleted_records_are_erased_from_the_file(file: Store, path: Path) -> None:
    put(file, record("a", text="a secret"))
    put(file, conversation(1, text="a secret"))
    file.delete("a", None)
    file.remove_item(CONV, "i0")
    file.close()
    assert b"a secret" not in path.read_bytes()


def test_a_read_only_file_can_be_read(file: Store) -> None:
    put(file, record("a"))
    file.connection.execute("PRAGMA query_only = ON")
    assert got(file, "a") == record("a").value
    with pytest.raises(StoreUnavailable, match="readonly"):
        put(file, record("b"))


def test_records_of_small_items_fill_no_file(path: Path) -> None:
    items = [{"id": f"rs_{number:048}", "type": "reasoning", "summary": []} for number in range(1000)]
    with closing(Store(path)) as file:
        for number in range(60):
            put(file, replace(record(f"resp_{number:048}", owner="a" * 32), items=items))
