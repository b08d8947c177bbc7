"""What is kept of responses and conversations, and for how long: the same in memory and in a file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from genai_server.api.generation import records as records_module
from genai_server.api.generation.record_file import RecordFile
from genai_server.api.generation.records import LatestResponse, MemoryRecords, Record
from genai_server.errors import InvalidField
from genai_server.openai_api.schemas.base import JsonObject

Records = MemoryRecords | RecordFile
Make = Callable[..., Records]


@pytest.fixture(params=["memory", "file"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def make(*ids: str, size: int = 3, num_bytes: int = 100_000) -> Records:
        made: Records = MemoryRecords(size, num_bytes)
        if request.param == "file":
            made = RecordFile(tmp_path / "responses.sqlite", size, num_bytes)
            request.addfinalizer(made.close)
        for id in ids:
            made.put(record(id))
        return made

    return make


def record(id: str, status: str = "completed", text: str = "", owner: str | None = None) -> Record:
    output = [{"id": f"out_{id}", "text": text}]
    value = {"id": id, "object": "response", "status": status, "output": output}
    return Record(value, [{"id": f"in_{id}"}], owner)


def kept(records: Records, *ids: str, owner: str | None = None) -> list[str]:
    return [id for id in ids if records.find_items({f"in_{id}"}, owner)]


def test_the_record_that_was_used_last_is_kept_longest(records: Make) -> None:
    store = records("a", "b", "c")
    assert store.get("a") == record("a")
    store.put(record("d"))
    assert kept(store, "a", "b", "c", "d") == ["a", "c", "d"]


def test_all_records_together_have_a_size(records: Make) -> None:
    store = records(num_bytes=3000)
    for id in "abcd":
        store.put(record(id, text="x" * 1000))
    assert kept(store, "a", "b", "c", "d") == ["c", "d"]
    assert store.delete("c")
    store.put(record("e", text="x" * 1000))
    assert kept(store, "c", "d", "e") == ["d", "e"]


def test_a_record_that_is_larger_than_all_may_be_evicts_none(records: Make) -> None:
    store = records("a", num_bytes=1000)
    assert not store.put(record("b", text="x" * 1000))
    assert kept(store, "a", "b") == ["a"]


def test_a_record_is_visible_to_its_owner_only(records: Make) -> None:
    store = records()
    store.put(record("a", owner="alice"))
    assert store.get("a", "alice") == record("a", owner="alice")
    for stranger in ("bob", None):
        assert store.get("a", stranger) is None
        assert not store.delete("a", stranger)
        assert store.find_items({"in_a"}, stranger) == {}
        assert store.change("a", stranger, lambda old: old) is None
    assert store.delete("a", "alice")
    assert store.find_items({"in_a"}, "alice") == {}


def test_the_owner_with_most_records_makes_room(records: Make) -> None:
    store = records()
    store.put(record("a", owner="alice"))
    for id in "bcde":
        store.put(record(id, owner="bob"))
    assert kept(store, *"bcde", owner="bob") == ["d", "e"]
    assert kept(store, "a", owner="alice") == ["a"]
    for id in "fg":
        store.put(record(id, owner="alice"))
    assert kept(store, *"afg", owner="alice") == ["f", "g"]
    assert kept(store, *"de", owner="bob") == ["e"]


def test_an_owner_of_large_records_evicts_none_of_many_small_ones(records: Make) -> None:
    store = records("a", "b", "c", size=100, num_bytes=3000)
    for id in "lm":
        store.put(record(id, text="x" * 1500, owner="alice"))
    assert kept(store, "a", "b", "c") == ["a", "b", "c"]
    assert store.get("l", "alice") is None
    assert store.get("m", "alice") is not None


def test_items_are_found_in_input_and_output(records: Make) -> None:
    store = records("a")
    found = store.find_items({"in_a", "out_a", "x"})
    assert found == {"in_a": {"id": "in_a"}, "out_a": {"id": "out_a", "text": ""}}
    assert store.find_items(set()) == {}


def test_a_record_is_changed_or_stays_as_it_was(records: Make) -> None:
    store = records("a")
    more = [{"id": "in_a"}, {"id": "new"}]
    changed = store.change("a", None, lambda old: replace(old, items=more))
    assert changed is not None
    assert (changed.items, store.find_items({"new"})) == (more, {"new": {"id": "new"}})

    def fails(old: Record) -> Record:
        raise InvalidField("no")

    with pytest.raises(InvalidField):
        store.change("a", None, fails)
    assert store.get("a") == changed
    assert store.change("b", None, lambda old: old) is None


def test_a_record_is_not_changed_to_one_that_is_too_large(records: Make) -> None:
    store = records("a", num_bytes=1000)
    with pytest.raises(InvalidField, match="at most 1000 .GENAI_RESPONSE_STORE_BYTES"):
        store.change("a", None, lambda old: replace(old, items=[*old.items, {"id": "x" * 1000}]))
    assert store.get("a") == record("a")


def test_a_record_takes_the_place_of_the_one_before(records: Make) -> None:
    store = records("a", "b")
    store.put(record("a", text="new"))
    assert store.get("a") == record("a", text="new")
    assert kept(store, "a", "b") == ["a", "b"]


def test_a_record_is_the_same_once_it_was_json() -> None:
    whole = replace(record("a", text="é\udc80"), events=[{"type": "x"}], run="r", owner="o")
    assert Record.from_json(whole.to_json()) == whole


def test_a_size_is_counted_in_bytes_of_utf_8() -> None:
    assert record("a", text="é").size() == record("a", text="e").size() + 1


def test_a_changed_record_has_the_size_of_all_that_it_holds() -> None:
    items = [{"id": f"i{number}", "text": "é" * number} for number in range(9)]
    before = replace(record("a"), items=items)
    for changed in ([*items, {"id": "new"}], [*items, *items], items[:4] + items[5:], [], [{"id": "x"}, *items], items):
        after = replace(before, items=changed, value={**before.value, "metadata": {"a": "b"}})
        assert after.size_after(before, before.size()) == after.size()


def test_a_conversation_that_grows_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryRecords(3, 100_000)
    measured: list[JsonObject] = []
    store.put(replace(record("a"), items=[{"id": f"i{number}"} for number in range(100)]))
    size = records_module._size

    def measure(part: JsonObject) -> int:
        measured.append(part)
        return size(part)

    monkeypatch.setattr(records_module, "_size", measure)
    changed = store.change("a", None, lambda old: replace(old, items=[*old.items, {"id": "new"}]))
    assert changed is not None
    assert measured == [changed.value, {"id": "new"}, changed.value]


def test_a_response_that_has_ended_cannot_be_cancelled_but_one_that_was_can() -> None:
    record("a", "cancelled").cancel()
    with pytest.raises(InvalidField, match="a is completed"):
        record("a").cancel()


def test_the_latest_response_is_forgotten_by_its_id_only() -> None:
    latest = LatestResponse(record("a"))
    latest.forget("b")
    assert latest.record is not None
    latest.forget("a")
    assert latest.record is None
