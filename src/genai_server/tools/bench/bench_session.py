"""A benchmark: examines the servers, runs the plan, and closes what it opened."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from genai_server.tools.bench import rounds
from genai_server.tools.bench.bench_client import Server
from genai_server.tools.bench.bench_prompts import calibrate
from genai_server.tools.bench.bench_report import Report, TargetInfo
from genai_server.tools.bench.health_polls import HealthProbe
from genai_server.tools.bench.measured_answer import AnswerError
from genai_server.tools.bench.measurement import Measurement
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.process_times import server_processes
from genai_server.tools.bench.target import Target

_LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_URLS = len(_LABELS)


class ServerUnusable(Exception):
    """A server cannot be measured; the message names its URL and says why."""


@dataclass(frozen=True)
class RequestOptions:
    """How requests are sent to the servers."""

    urls: Sequence[str]
    model: str | None = None
    api_key: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    health_path: str = "/healthz"
    # Seconds between health probes; 0 for none.
    health_interval: float = 0.02


class Session:
    """One run of a plan. `report` may be called at any time."""

    def __init__(self, plan: Plan, options: RequestOptions) -> None:
        self._plan = plan
        self._options = options
        self._targets: list[Target] = []
        self._measurements: list[Measurement] = []

    def report(self, *, interrupted: bool = False) -> Report:
        """The measurements so far."""
        infos = [_info(target) for target in self._targets]
        return Report(self._plan, infos, list(self._measurements), interrupted)

    async def run(self, on_step: Callable[[int, int, str], None]) -> None:
        """Measure everything. Raises ServerUnusable before anything is measured."""
        async with AsyncExitStack() as opened:
            for number, url in enumerate(self._options.urls):
                self._targets.append(await self._find_target(number, url, opened))
            await rounds.run(self._plan, self._targets, self._measurements.append, on_step)

    async def _find_target(self, number: int, url: str, opened: AsyncExitStack) -> Target:
        options = self._options
        server = Server(_LABELS[number], url, api_key=options.api_key, model=options.model, body=options.body)
        opened.push_async_callback(server.close)
        copy = sum(target.server.url == server.url for target in self._targets)
        await server.find_model()
        try:
            # The key contains the time, because the server may have cached prompts of an earlier run with the same
            # seed.
            calibration = await calibrate(server, self._plan.seed, copy, time.time_ns())
        except AnswerError as error:
            raise ServerUnusable(f"{url}: {error}") from None
        if options.health_interval <= 0:
            return Target(server, calibration, None, copy, server_processes(url))
        probe = HealthProbe(server.url, options.health_path, options.health_interval)
        opened.push_async_callback(probe.close)
        return Target(server, calibration, probe if await probe.answers() else None, copy, server_processes(url))


def _info(target: Target) -> TargetInfo:
    server, health = target.server, target.health
    if health is None:
        return TargetInfo(server.label, server.url, server.model)
    return TargetInfo(server.label, server.url, server.model, tuple(health.samples), health.failed)
