"""The prefix scenario: a long uncached prompt, then the same beginning with another end."""

from genai_server.tools.bench.bench_client import Recording
from genai_server.tools.bench.bench_load import read_all
from genai_server.tools.bench.bench_prompts import words
from genai_server.tools.bench.measurement import Case, Measurement
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.statistics import answer_figures
from genai_server.tools.bench.target import Target

COLD, CACHED = "cold", "cached prefix"
_OUTPUT_TOKENS = 8


async def measure(target: Target, plan: Plan, number: int) -> list[Measurement]:
    """One round on one server, one request at a time. Each repeat is a cold prompt and a cached one."""
    shared = target.calibration.words_for(plan.prefix_tokens)
    new = target.calibration.words_in(plan.new_tokens)
    found: dict[str, list[Recording]] = {COLD: [], CACHED: []}
    for repeat in range(plan.repeats):
        key = (plan.seed, target.copy, number, repeat)
        for name, recordings in found.items():
            prompt = f"{words(shared, *key)} {words(new, *key, name)}"
            recordings.append(await target.server.ask(prompt, _OUTPUT_TOKENS))
    return [_measurement(target, plan, name, number, recordings) for name, recordings in found.items()]


def _measurement(target: Target, plan: Plan, name: str, number: int, recordings: list[Recording]) -> Measurement:
    case = Case(name, 1, plan.prefix_tokens + plan.new_tokens, _OUTPUT_TOKENS)
    outcome = read_all(recordings)
    figures = answer_figures(outcome.answers, 1)
    return Measurement(target.server.label, case, number, figures, len(outcome.answers), tuple(outcome.errors))
