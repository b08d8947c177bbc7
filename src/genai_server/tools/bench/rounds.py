"""Runs a plan: rounds that measure the targets in turn, while the health probe runs."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from genai_server.tools.bench import crowd, disturbance, fairness, prefix, sweep
from genai_server.tools.bench.measurement import Case, Measurement
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.statistics import latencies
from genai_server.tools.bench.target import Target

_OTHERS = {
    "prefix": prefix.measure,
    "disturbance": disturbance.measure,
    "fairness": fairness.measure,
    "crowd": crowd.measure,
}


@dataclass(frozen=True)
class Step:
    """One measurement: a case of the sweep, or all of another scenario, on one target or the library."""

    round: int
    target: Target | str
    case: Case | None

    @property
    def title(self) -> str:
        """The text for a progress bar."""
        label = self.target if isinstance(self.target, str) else self.target.server.label
        what = f", {self.case.name}, {self.case.prompt_tokens} tokens x {self.case.streams}" if self.case else ""
        return f"round {self.round + 1}: {label}{what}"


def steps(plan: Plan, targets: list[Target]) -> Iterator[Step]:
    """All steps in order; targets alternate."""
    for number in range(plan.rounds):
        if plan.scenario == "sweep":
            yield from (Step(number, target, case) for target, case in sweep.points(plan, targets))
        else:
            yield from (Step(number, target, None) for target in targets)


async def run(
    plan: Plan,
    targets: list[Target],
    on_measured: Callable[[Measurement], None],
    on_step: Callable[[int, int, str], None],
) -> None:
    """Measure the whole plan.

    `on_measured` gets each measurement at once, so that an interruption loses none. `on_step` is called before each
    step with its number from 0, the number of all steps, and its title.
    """
    order = list(steps(plan, targets))
    for number, step in enumerate(order):
        on_step(number, len(order), step.title)
        for measurement in await _with_health(plan, step):
            on_measured(measurement)
    on_step(len(order), len(order), "done")


async def _with_health(plan: Plan, step: Step) -> list[Measurement]:
    health = step.target.health if isinstance(step.target, Target) else None
    if health is None:
        return await _measure(plan, step)
    async with health:
        found = await _measure(plan, step)
    probes = latencies("health", health.take(), 50, 99, 100)
    return [dataclasses.replace(each, figures={**each.figures, **probes}) for each in found]


async def _measure(plan: Plan, step: Step) -> list[Measurement]:
    if isinstance(step.target, str):
        assert plan.library is not None
        assert step.case is not None
        return [await sweep.measure_library(step.target, plan.library, plan, step.case, step.round)]
    if step.case is not None:
        return [await sweep.measure(step.target, plan, step.case, step.round)]
    return await _OTHERS[plan.scenario](step.target, plan, step.round)
