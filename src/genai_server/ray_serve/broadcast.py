"""Sends one request to all running replicas of the Ray Serve application at once, and collects their answers
(`ask_replicas`).
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ray.serve.exceptions import DeploymentUnavailableError

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
    """Send a request to all running replicas of the deployments `handles`, or only to the replica `named`, and return
    their answers.

    Stops early at an answer for which `is_enough` is true. A replica that has not answered after `seconds` seconds gets
    an answer with status 503; a replica that dies has no answer.
    """
    ends = time.monotonic() + seconds
    calls = await asyncio.gather(*(_calls(handle, request, named, seconds) for handle in handles))
    calls_by_task = {task: call for replica_calls in calls for task, call in replica_calls.items()}
    waiting, answers = set(calls_by_task), dict[asyncio.Task[Any], ReplicaAnswer]()
    try:
        while waiting and not any(map(is_enough, answers.values())):
            seconds_left = max(0.0, ends - time.monotonic())
            done, waiting = await asyncio.wait(waiting, timeout=seconds_left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                answers |= {
                    task: _silence(calls_by_task[task], seconds) for task in waiting if calls_by_task[task].is_recipient
                }
                break
            answered = {task: task.result() for task in done if not task.cancelled() and task.exception() is None}
            # Replicas that are not meant answer None.
            answers |= {task: answer for task, answer in answered.items() if answer is not None}
    finally:
        for task in waiting:
            task.cancel()
    return [answers[task] for task in calls_by_task if task in answers]


@dataclass(frozen=True)
class _Call:
    replica: str
    model: str
    is_recipient: bool


async def _calls(
    handle: Any, request: ForwardedRequest, named: str | None, seconds: float
) -> dict["asyncio.Task[Any]", _Call]:
    """Send a request to each running replica of the deployment `handle`, and return the running asyncio tasks that
    receive the answers. If `named` is given, only the replica with this name handles the request.

    The result is empty if no replica is running, or if the list of replicas does not arrive within `seconds` seconds.
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
