"""Long lists are inserted wherever a server's description allows them."""

import json
import random
from collections import Counter

from _fuzz.attempts import attempt
from _fuzz.floods import Place, flooded, places

FORMS = {
    "Body": {
        "type": "object",
        "properties": {
            "turns": {"type": "array", "items": {"$ref": "#/components/schemas/Turn"}},
            "extra": {"description": "Has no effect."},
            "count": {"type": "integer", "minimum": 2},
        },
        "required": ["turns", "count"],
    },
    "Turn": {
        "type": "object",
        "properties": {
            "kind": {"const": "turn"},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        },
        "required": ["kind", "content"],
    },
}


def _described(schema: object) -> dict[str, object]:
    asked = {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}
    return {"paths": {"/x": asked, "/y": {"get": {}}}, "components": {"schemas": FORMS}}


FOUND = places(_described({"$ref": "#/components/schemas/Body"}))


def test_places_for_lists_and_objects_are_found_with_context() -> None:
    assert list(FOUND) == ["/x"]
    turns, content = '{"count":2,"turns":', '{"kind":"turn","content":'
    assert set(FOUND["/x"]) == {
        Place((("", ""),)),
        Place(((turns, "}"),), '{"kind": "turn", "content": "x"}'),
        Place(((turns, "}"), ("", ""))),
        Place(((turns, "}"), (content, "}")), '"x"'),
        Place((('{"turns":[],"count":2,"extra":', "}"),), "{}"),
        Place((('{"turns":[],"count":2,"extra":', "}"),)),
    }


def test_a_flood_is_json_of_very_many_things_at_its_place() -> None:
    for place in FOUND["/x"]:
        for number in range(8):
            text = flooded(random.Random(number), place)
            assert 10_000 < len(text) < 1_200_000
            body = json.loads(text)
            if place.around[0][0].endswith('"turns":'):
                assert isinstance(body["turns"], list)
                assert body["count"] == 2


def test_some_attempts_are_floods() -> None:
    seen = Counter(b'"turns"' in attempt(1, number, ["/x"], FOUND).data for number in range(2000))
    assert 20 < seen[True] < 200
    assert attempt(1, 7, ["/x"], FOUND) == attempt(1, 7, ["/x"], FOUND)
