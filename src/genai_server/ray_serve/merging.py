"""Merges the answers of several Ray Serve replicas to one request, such as an admin call or /metrics, into one
response.
"""

import json
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from genai_server.apis.health import DEGRADED, FAILED
from genai_server.ray_serve.forwarded import ReplicaAnswer

_JSON = "application/json"
# Fields that list what a replica has, in OpenAI's form and in Ollama's.
_LISTS = ("data", "models")


def merged(answers: Sequence[ReplicaAnswer]) -> ReplicaAnswer:
    """Merge the answers of one or more replicas to the same request into one answer, and return it.

    The status and headers are those of the first success. If a replica failed with a status other than 404, they are
    those of the first such failure instead. In a JSON body, lists contain the entries of all successes, each with its
    `replica`, and the additional field `replicas` has the status and body of each replica. The field `status` of
    /healthz is `failed` if it is so for all replicas, and `degraded` if a replica is degraded or has failed.
    """
    failures = [answer for answer in answers if answer.status >= HTTPStatus.BAD_REQUEST]
    successes = [answer for answer in answers if answer.status < HTTPStatus.BAD_REQUEST]
    serious = [answer for answer in failures if answer.status != HTTPStatus.NOT_FOUND]
    chosen = [*serious, *successes, *failures][0]
    if chosen.content_type != _JSON:
        return chosen
    body = _fields(chosen)
    if {_fields(answer).get("status") for answer in successes} & {DEGRADED, FAILED}:  # of /healthz
        body["status"] = FAILED if all(_fields(answer).get("status") == FAILED for answer in successes) else DEGRADED
    for name in _LISTS:
        if isinstance(body.get(name), list) and chosen in successes:
            body[name] = [entry for answer in successes for entry in _entries(answer, name)]
    body["replicas"] = {
        answer.replica: {"model": answer.model, "status": answer.status, "body": _body(answer)} for answer in answers
    }
    return _with_body(chosen, body)


def joined(answers: Sequence[ReplicaAnswer]) -> ReplicaAnswer:
    """Merge the answers of one replica for each model into one answer, whose lists are concatenated, as a server with
    all models would return them. If a replica has failed, the first failure is returned.
    """
    failure = next((answer for answer in answers if answer.status >= HTTPStatus.BAD_REQUEST), None)
    if failure is not None or len(answers) == 1:
        return failure or answers[0]
    body = _fields(answers[0])
    for name in _LISTS:
        if isinstance(body.get(name), list):
            body[name] = [entry for answer in answers for entry in _fields(answer)[name]]
            if "last_id" in body:  # Anthropic's form
                body["last_id"] = _fields(answers[-1])["last_id"]
    return _with_body(answers[0], body)


def merged_metrics(answers: Sequence[ReplicaAnswer]) -> ReplicaAnswer:
    """Merge the metrics of all replicas that return them into one answer in Prometheus's text format. Each series gets
    the label `replica`.

    If no replica returns metrics, the first failure is returned.
    """
    successes = [answer for answer in answers if answer.status < HTTPStatus.BAD_REQUEST]
    if not successes:
        return answers[0]
    registry = CollectorRegistry()
    registry.register(_Families(successes))
    headers = [(b"content-type", CONTENT_TYPE_PLAIN_0_0_4.encode("latin-1"))]
    return ReplicaAnswer("", "", HTTPStatus.OK, headers, generate_latest(registry))


class _Families(Collector):
    """A Prometheus collector that yields the metric families of all replicas, parsed from their answers and labelled by
    replica.
    """

    def __init__(self, answers: Sequence[ReplicaAnswer]) -> None:
        self._answers = answers

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for answer in self._answers:
            for family in text_string_to_metric_families(answer.body.decode()):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "replica": answer.replica}, sample.value)
        return families.values()


def _entries(answer: ReplicaAnswer, name: str) -> list[Any]:
    values = _fields(answer).get(name)
    return [
        {**entry, "replica": answer.replica} if isinstance(entry, dict) else entry
        for entry in (values if isinstance(values, list) else [])
    ]


def _body(answer: ReplicaAnswer) -> Any:
    return json.loads(answer.body) if answer.content_type == _JSON and answer.body else None


def _fields(answer: ReplicaAnswer) -> dict[str, Any]:
    body = _body(answer)
    return dict(body) if isinstance(body, dict) else {}


def _with_body(answer: ReplicaAnswer, body: dict[str, Any]) -> ReplicaAnswer:
    encoded = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    headers = [(name, value) for name, value in answer.headers if name.lower() != b"content-length"]
    headers.append((b"content-length", str(len(encoded)).encode()))
    return ReplicaAnswer(answer.replica, answer.model, answer.status, headers, encoded)
