"""Answers of replicas that are all asked at once."""

import asyncio
from typing import Any

import pytest

from genai_server.ray_serve.forwarded import READINESS, ReplicaAnswer
from tests.ray_serve.handles import DEAD, SILENT, Handle

pytestmark = pytest.mark.usefixtures("ray_serve")


def _answer(replica: str, status: int = 200) -> ReplicaAnswer:
    return ReplicaAnswer(replica, "m", status, [], b"")


SILENT_ONE, DEAD_ONE = _answer("silent", SILENT), _answer("dead", DEAD)


def _ask(*handles: Handle, seconds: float = 0.05, **options: Any) -> dict[str, int]:
    """The status of each replica that answered, in order."""
    from genai_server.ray_serve.broadcast import ask_replicas

    answers = asyncio.run(ask_replicas(handles, READINESS, seconds, **options))
    return {answer.replica: answer.status for answer in answers}


def test_a_silent_replica_has_a_503_unless_another_is_named_and_a_dead_one_nothing() -> None:
    found = _ask(Handle(answers=[SILENT_ONE, _answer("a"), DEAD_ONE]), Handle(), Handle(answers=[_answer("b", 404)]))
    assert list(found.items()) == [("silent", 503), ("a", 200), ("b", 404)]
    assert _ask(Handle(answers=[SILENT_ONE, _answer("a")]), named="a") == {"a": 200}
    assert _ask(Handle(answers=[SILENT_ONE, _answer("a")]), named="silent") == {"silent": 503}
    assert _ask(Handle(answers=[_answer("a")]), named="unknown") == {}


def test_broadcast_waits_only_for_enough_answers() -> None:
    def is_enough(answer: ReplicaAnswer) -> bool:
        return answer.status == 200

    assert _ask(Handle(answers=[SILENT_ONE, DEAD_ONE, _answer("a")]), seconds=60, is_enough=is_enough) == {"a": 200}
    assert _ask(Handle(answers=[SILENT_ONE, _answer("a", 503)]), is_enough=is_enough) == {"silent": 503, "a": 503}
