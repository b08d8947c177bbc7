"""Answers of replicas that are all asked at once."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from genai_server.ray_serve.forwarded import READINESS, ForwardedRequest, ReplicaAnswer

pytestmark = pytest.mark.usefixtures("ray_serve")

SILENT, DEAD = ReplicaAnswer("silent", "m", 0, [], b""), ReplicaAnswer("dead", "m", 0, [], b"")


def _well(replica: str, status: int = 200) -> ReplicaAnswer:
    return ReplicaAnswer(replica, "m", status, [], b"")


@dataclass
class _Result:
    answer: ReplicaAnswer
    named: str | None

    @property
    def replica(self) -> str:
        return self.answer.replica

    async def get_async(self) -> ReplicaAnswer | None:
        if self.answer is SILENT:
            await asyncio.Event().wait()
        if self.answer is DEAD:
            raise ConnectionError
        return self.answer if self.named in (None, self.replica) else None


class _Handle:
    """The deployment of replicas with these answers; without any it does not exist."""

    deployment_name = "m"

    def __init__(self, *answers: ReplicaAnswer) -> None:
        self._answers = answers
        self._named: str | None = None

    def broadcast(self, method: str, request: ForwardedRequest, named: str | None) -> "_Handle":
        self._named = named
        return self

    async def _fetch_replica_results_async(self) -> list[_Result]:
        from ray.serve.exceptions import DeploymentUnavailableError

        if not self._answers:
            raise DeploymentUnavailableError(None)
        return [_Result(answer, self._named) for answer in self._answers]


def _ask(*handles: _Handle, seconds: float = 0.05, **options: Any) -> dict[str, int]:
    """The status of each replica that answered, in order."""
    from genai_server.ray_serve.broadcast import ask_replicas

    answers = asyncio.run(ask_replicas(handles, READINESS, seconds, **options))
    return {answer.replica: answer.status for answer in answers}


def test_a_silent_replica_has_a_503_and_a_dead_one_nothing() -> None:
    found = _ask(_Handle(SILENT, _well("a"), DEAD), _Handle(), _Handle(_well("b", 404)))
    assert list(found.items()) == [("silent", 503), ("a", 200), ("b", 404)]


def test_silence_is_reported_only_for_the_named_replica() -> None:
    assert _ask(_Handle(SILENT, _well("a")), named="a") == {"a": 200}
    assert _ask(_Handle(SILENT, _well("a")), named="silent") == {"silent": 503}
    assert _ask(_Handle(_well("a")), named="unknown") == {}


def test_broadcast_waits_only_for_enough_answers() -> None:
    def is_enough(answer: ReplicaAnswer) -> bool:
        return answer.status == 200

    assert _ask(_Handle(SILENT, DEAD, _well("a")), seconds=60, is_enough=is_enough) == {"a": 200}
    assert _ask(_Handle(SILENT, _well("a", 503)), is_enough=is_enough) == {"silent": 503, "a": 503}
