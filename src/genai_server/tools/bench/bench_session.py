"""Runs a benchmark (`Session`): examines the servers, measures each of them in turn in each round, as the benchmark's
plan says, and closes the connections at the end.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from genai_server.errors import ServerUnusable
from genai_server.tools.bench import scenarios
from genai_server.tools.bench.bench_client import HealthProbe, Server, Target, calibrate, server_processes
from genai_server.tools.bench.bench_report import Report, TargetInfo
from genai_server.tools.bench.measurement import AnswerError, Case, Measurement, latencies
from genai_server.tools.bench.plan import LABELS, Plan, RequestOptions
from genai_server.tools.bench.scenarios import MEASURES


@dataclass(frozen=True)
class _Step:
    """One step of a benchmark, which takes one measurement or several: in `round`, on `target`, which is a server or
    the label of the bare library. `case` is the case of a sweep to measure; None for another scenario, which is
    measured as a whole.
    """

    round: int
    target: Target | str
    case: Case | None = None

    @property
    def title(self) -> str:
        """What a progress bar says while this step is being measured."""
        label = self.target if isinstance(self.target, str) else self.target.server.label
        details = f", {self.case.name}, {self.case.prompt_tokens} tokens x {self.case.streams}" if self.case else ""
        return f"round {self.round + 1}: {label}{details}"


class Session:
    """One run of a benchmark. The command creates it with the plan (what to measure) and the options of requests.

    `run` measures everything; `report` may be called at any time, also after `run` was interrupted.
    """

    def __init__(self, plan: Plan, options: RequestOptions) -> None:
        self._plan = plan
        self._options = options
        self._targets: list[Target] = []
        self._measurements: list[Measurement] = []

    def report(self, *, interrupted: bool = False) -> Report:
        """Return a report with the measurements so far. With `interrupted`, the report says that the benchmark was
        interrupted.
        """
        infos = [_info(target) for target in self._targets]
        return Report(self._plan, infos, list(self._measurements), interrupted)

    async def run(self, on_step: Callable[[int, int, str], None]) -> None:
        """Measure everything that the plan says. Raises ServerUnusable, before anything is measured, if a server cannot
        be used.

        `on_step` is called before each step with its number (from 0), the number of all steps, and its title, and once
        at the end with the number of all steps twice and "done".
        """
        async with AsyncExitStack() as opened:
            for number, url in enumerate(self._options.urls):
                self._targets.append(await self._find_target(number, url, opened))
            steps = list(self._steps())
            for number, step in enumerate(steps):
                on_step(number, len(steps), step.title)
                self._measurements += await self._measure_with_health(step)
            on_step(len(steps), len(steps), "done")

    async def _find_target(self, number: int, url: str, opened: AsyncExitStack) -> Target:
        options = self._options
        server = Server(LABELS[number], url, api_key=options.api_key, model=options.model, body=options.body)
        opened.push_async_callback(server.close)
        copy = sum(target.server.url == server.url for target in self._targets)
        await server.find_model()
        try:
            # The key contains the time, because the server may have cached prompts of an earlier run with the same
            # seed.
            calibration = await calibrate(server, self._plan.seed, copy, time.time_ns())
        except AnswerError as error:
            raise ServerUnusable(str(error) if server.url in str(error) else f"{url}: {error}") from None
        probe = None
        if options.health_interval > 0:
            probe = HealthProbe(server.url, options.health_path, options.health_interval)
            opened.push_async_callback(probe.close)
            probe = probe if await probe.answers() else None
        return Target(server, calibration, probe, copy, server_processes(url))

    def _steps(self) -> Iterator[_Step]:
        """Yield all steps of the benchmark in order: round by round, and in each round every server in turn."""
        for number in range(self._plan.rounds):
            if self._plan.scenario == "sweep":
                yield from (_Step(number, *point) for point in scenarios.sweep_points(self._plan, self._targets))
            else:
                yield from (_Step(number, target) for target in self._targets)

    async def _measure_with_health(self, step: _Step) -> list[Measurement]:
        health = step.target.health if isinstance(step.target, Target) else None
        if health is None:
            return await self._measure(step)
        num_before = len(health.samples)
        async with health:
            measurements = await self._measure(step)
        probes = latencies("health", health.samples[num_before:], 50, 99, 100)
        return [replace(measurement, figures={**measurement.figures, **probes}) for measurement in measurements]

    async def _measure(self, step: _Step) -> list[Measurement]:
        plan = self._plan
        if isinstance(step.target, str):
            assert plan.library is not None
            assert step.case is not None
            return [await scenarios.measure_library(step.target, plan.library, plan, step.case, step.round)]
        if step.case is not None:
            return [await scenarios.measure_sweep(step.target, plan, step.case, step.round)]
        return await MEASURES[plan.scenario](step.target, plan, step.round)


def _info(target: Target) -> TargetInfo:
    server, health = target.server, target.health
    if health is None:
        return TargetInfo(server.label, server.url, server.model)
    return TargetInfo(server.label, server.url, server.model, tuple(health.samples), health.failed)
