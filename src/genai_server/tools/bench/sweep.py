"""The sweep: concurrency by prompt length, every prompt new to the server.

The bare library cannot draft tokens. So each server is also measured without drafts.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genai_server.tools.bench.bare_loop import SHIPPED, TUNED, run_bare_loop
from genai_server.tools.bench.bench_load import Outcome, run_load
from genai_server.tools.bench.bench_prompts import words
from genai_server.tools.bench.measurement import Case, Measurement
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.statistics import Figures, answer_figures, per_token
from genai_server.tools.bench.target import Target

NAME = "sweep"
WITHOUT_DRAFTS = "sweep without drafts"
# With a seed this server drafts no tokens, because the same seed must give the same tokens.
_NO_DRAFTS: dict[str, Any] = {"seed": 0}


def points(plan: Plan, targets: list[Target]) -> Iterator[tuple[Target | str, Case]]:
    """One round in order: each point on every target before the next; the library comes before the single stream."""
    for length in plan.prompt_tokens:
        if plan.library is not None:
            alone = Case(NAME, 1, length, plan.output_tokens)
            yield from ((label, alone) for label in (TUNED, SHIPPED))
            undrafted = Case(WITHOUT_DRAFTS, 1, length, plan.output_tokens)
            yield from ((target, undrafted) for target in targets)
        for streams in plan.concurrency:
            case = Case(NAME, streams, length, plan.output_tokens)
            yield from ((target, case) for target in targets)


async def measure(target: Target, plan: Plan, case: Case, number: int) -> Measurement:
    """Measure one point on one server in one round."""
    count = target.calibration.words_for(case.prompt_tokens)
    prompts = [
        words(count, plan.seed, target.copy, number, case, request) for request in range(plan.requests_at(case.streams))
    ]
    before = target.cpu_seconds()
    more = _NO_DRAFTS if case.name == WITHOUT_DRAFTS else {}
    outcome = await run_load(target.server, prompts, case.output_tokens, case.streams, more)
    cpu = per_token(outcome.answers, before, target.cpu_seconds())
    return _measurement(target.server.label, case, number, outcome, {"cpu_per_token": cpu})


async def measure_library(label: str, model_dir: Path, plan: Plan, case: Case, number: int) -> Measurement:
    """The bare loop with the same lengths, as many times as a server is asked with one stream."""
    runs = plan.requests_at(1)
    outcome = await run_bare_loop(label, model_dir, case.prompt_tokens, case.output_tokens, runs)
    return _measurement(label, case, number, outcome)


def _measurement(label: str, case: Case, number: int, outcome: Outcome, more: Figures | None = None) -> Measurement:
    figures = answer_figures(outcome.answers, case.streams) | (more or {})
    return Measurement(label, case, number, figures, len(outcome.answers), tuple(outcome.errors))
