"""Measures one server with the loads of `genai-server bench`: new prompts, and prompts with a cached beginning."""

from __future__ import annotations

from genai_server.tools.bench import scenarios
from genai_server.tools.bench.bench_client import Server, Target, calibrate, run_load, words
from genai_server.tools.bench.measurement import Case, Measurement, answer_figures
from genai_server.tools.bench.plan import Plan

COLD, SHARED = scenarios.SWEEP, "shared prefix"
_BODY = {"ignore_eos": True, "temperature": 0}
_WARM_UP_TOKENS = 8


async def measure(label: str, url: str, plan: Plan, number: int) -> list[Measurement]:
    """One round on a server that has just been started. All servers get the same prompts.

    Raises AnswerError if it does not answer.
    """
    server = Server(label, url, api_key=None, model=None, body=_BODY)
    try:
        await server.find_model()
        target = Target(server, await calibrate(server, plan.seed, number), None)
        await _warm_up(target, plan)
        found = []
        for _, case in scenarios.sweep_points(plan, [target]):
            found.append(await scenarios.measure_sweep(target, plan, case, number))
            found.append(await _measure_shared(target, plan, case, number))
        return found
    finally:
        await server.close()


async def _warm_up(target: Target, plan: Plan) -> None:
    """A batch of short prompts and one long prompt: what a server does for the first time may take longer."""
    streams = max(plan.concurrency)
    short, long = (target.calibration.words_for(length(plan.prompt_tokens)) for length in (min, max))
    prompts = [words(short, plan.seed, "warm up", index) for index in range(streams)]
    await run_load(target.server, prompts, _WARM_UP_TOKENS, streams)
    await target.server.ask(words(long, plan.seed, "warm up", "long"), _WARM_UP_TOKENS)


async def _measure_shared(target: Target, plan: Plan, case: Case, number: int) -> Measurement:
    """Prompts that all begin as one before them, which the server has answered, and end with `new_tokens` of their own.

    The beginning is new to the server at each point.
    """
    own = target.calibration.words_in(plan.new_tokens)
    shared = max(1, target.calibration.words_for(case.prompt_tokens) - own)
    key = (plan.seed, number, SHARED, case)
    beginning = words(shared, *key)
    prompts = [f"{beginning} {words(own, *key, request)}" for request in range(plan.requests_at(case.streams) + 1)]
    await target.server.ask(prompts.pop(), _WARM_UP_TOKENS)
    outcome = await run_load(target.server, prompts, case.output_tokens, case.streams)
    case = Case(SHARED, case.streams, case.prompt_tokens, case.output_tokens)
    figures = answer_figures(outcome.answers, case.streams)
    return Measurement(target.server.label, case, number, figures, len(outcome.answers), tuple(outcome.errors))
