"""What is kept of responses, and for how long."""

from dataclasses import replace

import pytest

from genai_server.api.generation.response_store import EndedResponse, ResponseStore
from genai_server.errors import InvalidField, ResponseNotFound


def _ended(id: str, status: str = "completed", text: str = "") -> EndedResponse:
    output = [{"id": f"out_{id}", "text": text}]
    return EndedResponse({"id": id, "status": status, "output": output}, [{"id": f"in_{id}"}])


def _store(*ids: str, size: int = 3, num_bytes: int = 10_000) -> ResponseStore:
    store = ResponseStore(size, num_bytes)
    for id in ids:
        _keep(store, _ended(id))
    return store


def _keep(store: ResponseStore, ended: EndedResponse) -> None:
    store.begin(ended)
    store.finish(ended)


def _kept(store: ResponseStore, *ids: str) -> list[str]:
    return [id for id in ids if store.find_items({f"in_{id}"})]


def test_the_response_that_was_used_last_is_kept_longest() -> None:
    store = _store("a", "b", "c")
    store.get("a")
    _keep(store, _ended("d"))
    assert _kept(store, "a", "b", "c", "d") == ["a", "c", "d"]


def test_all_kept_responses_together_have_a_size() -> None:
    size = _ended("a").size()
    store = _store("a", "b", "c", num_bytes=size * 2)
    assert _kept(store, "a", "b", "c") == ["b", "c"]
    store.delete("b")
    _keep(store, _ended("d"))
    assert _kept(store, "b", "c", "d") == ["c", "d"]


def test_a_response_that_is_larger_than_all_may_be_drives_nobody_out() -> None:
    store = _store("a", num_bytes=1000)
    _keep(store, _ended("b", text="x" * 1000))
    assert _kept(store, "a", "b") == ["a"]


def test_a_response_is_counted_in_bytes_of_utf_8() -> None:
    assert _ended("a", text="é").size() == _ended("a", text="e").size() + 1


def test_responses_that_are_being_made_are_there_however_many_they_are() -> None:
    store = ResponseStore(1, 1000)
    for id in "abc":
        store.begin(_ended(id, "in_progress"))
    assert [store.get(id).response["status"] for id in "abc"] == ["in_progress"] * 3


def test_a_response_that_is_deleted_while_it_is_made_is_not_kept() -> None:
    store = ResponseStore(3, 1000)
    store.begin(_ended("a", "in_progress"))
    store.delete("a")
    store.finish(_ended("a"))
    with pytest.raises(ResponseNotFound):
        store.get("a")


def test_a_response_that_nobody_will_ask_for_is_not_kept() -> None:
    store = ResponseStore(3, 1000)
    store.begin(_ended("a", "in_progress"))
    store.abandon("a")
    store.finish(_ended("a"))
    assert _kept(store, "a") == []
    store.abandon("a")


@pytest.mark.parametrize("method", ["get", "delete"])
def test_an_unknown_response_is_not_found(method: str) -> None:
    with pytest.raises(ResponseNotFound, match='"x"'):
        getattr(_store("a"), method)("x")


def test_a_response_is_there_for_its_owner_only() -> None:
    store = ResponseStore(3, 1000)
    store.begin(replace(_ended("a", "in_progress"), owner="alice"))
    _keep(store, replace(_ended("b"), owner="alice"))
    for id in "ab":
        assert store.get(id, "alice").owner == "alice"
        assert store.find_items({f"in_{id}"}, "alice")
        for stranger in ("bob", None):
            assert store.find_items({f"in_{id}"}, stranger) == {}
            with pytest.raises(ResponseNotFound):
                store.get(id, stranger)
            with pytest.raises(ResponseNotFound):
                store.delete(id, stranger)
    store.delete("b", "alice")
    assert store.find_items({"in_b"}, "alice") == {}


def test_who_keeps_most_makes_room_so_that_no_owner_drives_out_anothers() -> None:
    store = _store(size=3)
    _keep(store, replace(_ended("a"), owner="alice"))
    for id in "bcde":
        _keep(store, replace(_ended(id), owner="bob"))
    assert [id for id in "bcde" if store.find_items({f"in_{id}"}, "bob")] == ["d", "e"]
    assert store.find_items({"in_a"}, "alice")
    for id in "fg":
        _keep(store, replace(_ended(id), owner="alice"))
    assert [id for id in "afg" if store.find_items({f"in_{id}"}, "alice")] == ["f", "g"]
    assert [id for id in "de" if store.find_items({f"in_{id}"}, "bob")] == ["e"]


def test_an_owner_of_large_responses_drives_out_none_of_many_small_ones() -> None:
    large = replace(_ended("l", text="x" * 400), owner="alice")
    store = _store("a", "b", "c", size=100, num_bytes=large.size() + 4 * _ended("a").size())
    _keep(store, large)
    _keep(store, replace(large, response={**large.response, "id": "m"}))
    assert _kept(store, "a", "b", "c") == ["a", "b", "c"]
    with pytest.raises(ResponseNotFound):
        store.get("l", "alice")
    assert store.get("m", "alice").owner == "alice"


def test_items_are_found_in_input_and_output() -> None:
    store = _store("a")
    found = store.find_items({"in_a", "out_a", "x"})
    assert found == {"in_a": {"id": "in_a"}, "out_a": {"id": "out_a", "text": ""}}
    assert store.find_items(set()) == {}


def test_a_response_that_has_ended_cannot_be_cancelled_but_one_that_was_can() -> None:
    _ended("a", "cancelled").cancel()
    with pytest.raises(InvalidField, match="completed"):
        _ended("a").cancel()


def test_a_store_without_a_size_is_off() -> None:
    assert not ResponseStore(0, 1000).is_on
