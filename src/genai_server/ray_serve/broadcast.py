"""Sends one request to all replicas at once, and merges their answers into one response."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from ray.serve.exceptions import DeploymentUnavailableError

from genai_server.apis.status.health import DEGRADED, FAILED
from genai_server.errors import NoEngineReady
from genai_server.http.error_responses import error_body, http_status
from genai_server.ray_serve.forwarded import ForwardedRequest, ReplicaAnswer
from genai_server.ray_serve.ray_internals import replica_results


async def ask_replicas(
    handles: Iterable[Any],
    request: ForwardedRequest,
    seconds: float,
    *,
    named: str | None = None,
    is_enough: Callable[[ReplicaAnswer], bool] = lambda answer: False,
) -> list[ReplicaAnswer]:
    """Return the answers of all running replicas of these deployments, or only of the replica `named`.

    Stops early at an answer for which `is_enough` is true. A replica that has not answered after `seconds` gets an
    answer with status 503; a replica that dies has no answer.
    """
    ends = time.monotonic() + seconds
    calls = await asyncio.gather(*(_calls(handle, request, named, seconds) for handle in handles))
    asked = {task: call for replica_calls in calls for task, call in replica_calls.items()}
    waiting, answers = set(asked), dict[asyncio.Task[Any], ReplicaAnswer]()
    try:
        while waiting and not any(map(is_enough, answers.values())):
            left = max(0.0, ends - time.monotonic())
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                answers |= {task: _silence(asked[task], seconds) for task in waiting if asked[task].is_meant}
                break
            answered = {task: task.result() for task in done if not task.cancelled() and task.exception() is None}
            # Replicas that are not meant answer None.
            answers |= {task: answer for task, answer in answered.items() if answer is not None}
    finally:
        for task in waiting:
            task.cancel()
    return [answers[task] for task in asked if task in answers]


@dataclass(frozen=True)
class _Call:
    replica: str
    model: str
    is_meant: bool


async def _calls(
    handle: Any, request: ForwardedRequest, named: str | None, seconds: float
) -> dict["asyncio.Task[Any]", _Call]:
    """Call each running replica of a deployment; with `named`, only the replica with this name handles the request.
    Returns a running task for each call; empty if no replica is running, or if the list of replicas does not arrive
    within `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            results = await replica_results(handle.broadcast("answer", request, named))
    except (DeploymentUnavailableError, TimeoutError):
        return {}
    model = handle.deployment_name
    return {
        asyncio.create_task(result.get_async()): _Call(result.replica, model, named in (None, result.replica))
        for result in results
    }


def _silence(call: _Call, seconds: float) -> ReplicaAnswer:
    error = NoEngineReady(f"the replica has not answered for {seconds:.0f} s")
    status, _ = http_status(error)
    headers = [(b"content-type", b"application/json")]
    return ReplicaAnswer(call.replica, call.model, status, headers, json.dumps(error_body(error)).encode())


_JSON = "application/json"
# Fields that list what a replica has, in OpenAI's form and in Ollama's.
_LISTS = ("data", "models")


def merged(answers: Sequence[ReplicaAnswer]) -> ReplicaAnswer:
    """Merge the answers of one or more replicas to the same request into one.

    The status and headers are those of the first success. If a replica failed with a status other than 404, they are
    those of the first such failure instead. In a JSON body, lists contain the entries of all successes, each with its
    `replica`, and the additional field `replicas` has the status and body of each replica. The field `status` of
    /healthz is `failed` if it is so for all replicas, and `degraded` if a replica is degraded or has failed.
    """
    failures = [one for one in answers if one.status >= HTTPStatus.BAD_REQUEST]
    successes = [one for one in answers if one.status < HTTPStatus.BAD_REQUEST]
    serious = [one for one in failures if one.status != HTTPStatus.NOT_FOUND]
    chosen = [*serious, *successes, *failures][0]
    if chosen.content_type != _JSON:
        return chosen
    body = _fields(chosen)
    if {_fields(one).get("status") for one in successes} & {DEGRADED, FAILED}:  # of /healthz
        body["status"] = FAILED if all(_fields(one).get("status") == FAILED for one in successes) else DEGRADED
    for name in _LISTS:
        if isinstance(body.get(name), list) and chosen in successes:
            body[name] = [entry for one in successes for entry in _entries(one, name)]
    body["replicas"] = {one.replica: {"model": one.model, "status": one.status, "body": _body(one)} for one in answers}
    return _with_body(chosen, body)


def joined(answers: Sequence[ReplicaAnswer]) -> ReplicaAnswer:
    """Merge the answers of one replica per model: concatenate their lists, as a server with all models would
    return them.
    """
    failure = next((one for one in answers if one.status >= HTTPStatus.BAD_REQUEST), None)
    if failure is not None or len(answers) == 1:
        return failure or answers[0]
    body = _fields(answers[0])
    for name in _LISTS:
        if isinstance(body.get(name), list):
            body[name] = [entry for one in answers for entry in _fields(one)[name]]
            if "last_id" in body:  # Anthropic's form
                body["last_id"] = _fields(answers[-1])["last_id"]
    return _with_body(answers[0], body)


def merged_metrics(answers: Sequence[ReplicaAnswer]) -> ReplicaAnswer:
    """Merge the metrics of all replicas that return them. Each series gets the label `replica`.

    If no replica returns metrics, the first failure is returned.
    """
    successes = [one for one in answers if one.status < HTTPStatus.BAD_REQUEST]
    if not successes:
        return answers[0]
    registry = CollectorRegistry()
    registry.register(_Families(successes))
    headers = [(b"content-type", CONTENT_TYPE_PLAIN_0_0_4.encode("latin-1"))]
    return ReplicaAnswer("", "", HTTPStatus.OK, headers, generate_latest(registry))


class _Families(Collector):
    """The metric families of all replicas, parsed from Prometheus's text format."""

    def __init__(self, answers: Sequence[ReplicaAnswer]) -> None:
        self._answers = answers

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for one in self._answers:
            for family in text_string_to_metric_families(one.body.decode()):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "replica": one.replica}, sample.value)
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
