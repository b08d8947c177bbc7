"""Simulated handles of Ray Serve's deployments."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from genai_server.ray_serve.forwarded import ForwardedRequest, ReplicaAnswer

# Statuses of answers that never arrive: the replica is silent, or has died.
SILENT, DEAD = 0, -1


class _Response:
    def __init__(self, steps: list[Any]) -> None:
        self._steps = steps

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            yield [step]

    def cancel(self) -> None:
        raise AssertionError("no client disconnects")


class Handle:
    """A deployment's handle. Each call uses the next script: messages, and errors to raise.

    `answers` are those of its replicas to a broadcast; without any no replica runs.
    """

    deployment_name = "m"

    def __init__(self, *scripts: list[Any], answers: Sequence[ReplicaAnswer] = ()) -> None:
        self.scripts = list(scripts)
        self.answers = answers
        self.asked: list[ForwardedRequest] = []
        self._named: str | None = None

    def options(self, **_: Any) -> "Handle":
        return self

    def remote(self, *positional: ForwardedRequest, request: ForwardedRequest | None = None) -> _Response:
        (asked,) = [*positional, *([request] if request else [])]
        assert bool(positional) == bool(asked.prompt)
        self.asked.append(asked)
        return _Response(self.scripts.pop(0))

    def broadcast(self, method: str, request: ForwardedRequest, named: str | None) -> "Handle":
        assert method == "answer"
        self.asked.append(request)
        self._named = named
        return self

    async def _fetch_replica_results_async(self) -> list["_Result"]:
        from ray.serve.exceptions import DeploymentUnavailableError

        if not self.answers:
            raise DeploymentUnavailableError(None)
        return [_Result(answer, self._named) for answer in self.answers]


class _Result:
    """A pending answer of a replica, None if another one is named."""

    def __init__(self, answer: ReplicaAnswer, named: str | None) -> None:
        self.replica = answer.replica
        self._answer = answer
        self._named = named

    async def get_async(self) -> ReplicaAnswer | None:
        if self._answer.status == SILENT:
            await asyncio.Event().wait()
        if self._answer.status == DEAD:
            raise ConnectionError
        return self._answer if self._named in (None, self.replica) else None
