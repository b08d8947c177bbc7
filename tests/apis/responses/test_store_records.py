"""The stored form of records."""

import json

from genai_server.apis.responses.store_records import (
    EVENT,
    ITEM,
    OUTPUT,
    LatestResponse,
    Record,
    Row,
    encode_record,
    to_json,
)


def record(id: str, status: str = "completed", text: str = "", owner: str | None = None) -> Record:
    output = [{"id": f"out_{id}", "text": text}]
    value = {"id": id, "object": "response", "status": status, "output": output}
    return Record(value, [{"id": f"in_{id}"}], owner)


def test_each_item_and_event_is_a_row() -> None:
    stored = encode_record(Record(record("a").value, [{"id": "in_a"}], events=[{"type": "x"}]))
    assert json.loads(stored.head) == {**record("a").value, "output": []}
    assert stored.rows == [
        Row(ITEM, "in_a", b'{"id":"in_a"}'),
        Row(OUTPUT, "out_a", b'{"id":"out_a","text":""}'),
        Row(EVENT, None, b'{"type":"x"}'),
    ]


def test_the_size_is_counted_in_bytes_of_utf_8() -> None:
    assert encode_record(record("a", text="é")).size == encode_record(record("a", text="e")).size + 1


def test_a_lone_surrogate_survives_json() -> None:
    assert json.loads(to_json({"a": "é\udc80"})) == {"a": "é\udc80"}


def test_the_latest_response_is_forgotten_by_its_id_only() -> None:
    latest = LatestResponse(record("a"))
    latest.forget("b")
    assert latest.record is not None
    latest.forget("a")
    assert latest.record is None
