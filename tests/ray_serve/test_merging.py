"""Several replicas' answers merged into one."""

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from genai_server.ray_serve.forwarded import ReplicaAnswer
from genai_server.ray_serve.merging import joined, merged, merged_metrics

JSON = [(b"content-type", b"application/json"), (b"content-length", b"9")]


def _answer(replica: str, body: Any, status: int = 200) -> ReplicaAnswer:
    return ReplicaAnswer(replica, "m", status, JSON, json.dumps(body).encode())


def _body(answer: ReplicaAnswer) -> Any:
    assert dict(answer.headers)[b"content-length"] == str(len(answer.body)).encode()
    return json.loads(answer.body)


def test_lists_are_merged_with_the_replica_of_each_entry() -> None:
    found = merged([_answer("a", {"object": "list", "data": [{"id": 1}]}), _answer("b", {"data": [{"id": 2}]})])
    body = _body(found)
    assert (found.status, body["object"]) == (200, "list")
    assert body["data"] == [{"id": 1, "replica": "a"}, {"id": 2, "replica": "b"}]
    assert body["replicas"]["b"] == {"model": "m", "status": 200, "body": {"data": [{"id": 2}]}}


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [("ok ok", "ok"), ("ok failed", "degraded"), ("degraded ok", "degraded"), ("failed failed", "failed")],
)
def test_health_of_replicas_is_degraded_where_they_differ(statuses: str, whole: str) -> None:
    answers = [_answer(str(number), {"status": status}) for number, status in enumerate(statuses.split())]
    assert _body(merged(answers))["status"] == whole


def test_not_found_is_outweighed_by_success_and_other_failures_are_the_calls() -> None:
    found = merged([_answer("a", {"error": {}}, 404), _answer("b", {"cancelled": True})])
    assert (found.status, _body(found)["cancelled"]) == (200, True)
    assert merged([_answer("a", {"error": {}}, 404), _answer("b", {"error": {}}, 404)]).status == 404
    found = merged([_answer("a", {"devices": {}}), _answer("b", {"error": {"code": "no_engine_ready"}}, 503)])
    body = _body(found)
    assert (found.status, body["error"]["code"]) == (503, "no_engine_ready")
    assert {name: one["status"] for name, one in body["replicas"].items()} == {"a": 200, "b": 503}


def test_answer_that_is_not_json_is_returned_unchanged() -> None:
    page = ReplicaAnswer("b", "m", 200, [(b"content-type", b"text/html; charset=utf-8")], b"<p>")
    assert merged([_answer("a", {"error": {}}, 404), page]) is page


def test_lists_of_several_deployments_are_one_list_or_one_failure() -> None:
    one, other = ({"data": [{"id": id}], "has_more": False, "first_id": id, "last_id": id} for id in "ab")
    body = _body(joined([_answer("", one), _answer("", other)]))
    assert [entry["id"] for entry in body["data"]] == ["a", "b"]
    assert (body["first_id"], body["last_id"]) == ("a", "b")
    assert joined([_answer("", {"data": []}), _answer("", {"error": {}}, 401)]).status == 401


def test_each_series_has_its_replica_and_each_metric_one_head() -> None:
    text = b'# HELP a_total Help.\n# TYPE a_total counter\na_total{x="1"} 2.0\n'
    found = merged_metrics([ReplicaAnswer(name, "m", 200, [], text) for name in "pq"])
    assert found.body.count(b"# HELP") == found.body.count(b"# TYPE") == 1
    (family,) = text_string_to_metric_families(found.body.decode())
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"x": "1", "replica": "p"}, 2.0),
        ({"x": "1", "replica": "q"}, 2.0),
    ]
