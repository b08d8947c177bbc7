"""The fairness scenario: how long a short prompt waits behind a long one, compared with alongside running streams."""

import asyncio

from genai_server.tools.bench.bench_client import Recording
from genai_server.tools.bench.bench_load import read_all
from genai_server.tools.bench.bench_prompts import words
from genai_server.tools.bench.disturbance import ask_alongside
from genai_server.tools.bench.measurement import Case, Measurement
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.statistics import answer_figures
from genai_server.tools.bench.target import Target

ALONGSIDE, BEHIND = "short prompt alongside streams", "short prompt behind a long one"
_OUTPUT_TOKENS = 8
# Seconds after which reading of the long prompt has begun.
_HEAD_START = 0.2


async def measure(target: Target, plan: Plan, number: int) -> list[Measurement]:
    """One round on one server. Each repeat is a short prompt alongside streams, and then one behind a long prompt."""
    server = target.server
    short, stream, long = (
        target.calibration.words_for(count) for count in (plan.new_tokens, plan.stream_tokens, plan.disturbing_tokens)
    )
    found: dict[str, list[Recording]] = {ALONGSIDE: [], BEHIND: []}
    for repeat in range(plan.repeats):
        key = (plan.seed, target.copy, number, repeat)
        prompts = [words(stream, *key, index) for index in range(plan.streams)]
        _, recording = await ask_alongside(server, prompts, plan.output_tokens, words(short, *key, ALONGSIDE))
        found[ALONGSIDE].append(recording)
        before = asyncio.create_task(server.ask(words(long, *key, "long"), _OUTPUT_TOKENS))
        await asyncio.sleep(_HEAD_START)
        found[BEHIND].append(await server.ask(words(short, *key, BEHIND), _OUTPUT_TOKENS))
        await before
    return [_measurement(target, plan, name, number, recordings) for name, recordings in found.items()]


def _measurement(target: Target, plan: Plan, name: str, number: int, recordings: list[Recording]) -> Measurement:
    case = Case(name, 1, plan.new_tokens, _OUTPUT_TOKENS)
    outcome = read_all(recordings)
    figures = answer_figures(outcome.answers, 1)
    return Measurement(target.server.label, case, number, figures, len(outcome.answers), tuple(outcome.errors))
