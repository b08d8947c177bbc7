"""The crowd scenario: requests that arrive together and begin with the same long text, which is not cached."""

import asyncio

from genai_server.tools.bench.bench_load import read_all
from genai_server.tools.bench.bench_prompts import words
from genai_server.tools.bench.measurement import Case, Measurement
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.statistics import answer_figures
from genai_server.tools.bench.target import Target

_CASE = "common beginning at once"
_OUTPUT_TOKENS = 8


async def measure(target: Target, plan: Plan, number: int) -> list[Measurement]:
    """One round on one server.

    `prompts_read` is the number of prompt tokens that the server read, divided by those of one prompt: a little more
    than 1 at best, the number of requests without any cache.
    """
    shared = target.calibration.words_for(plan.prefix_tokens)
    own = target.calibration.words_in(plan.new_tokens)
    recordings = []
    for repeat in range(plan.repeats):
        key = (plan.seed, target.copy, number, repeat)
        prompts = [f"{words(shared, *key)} {words(own, *key, stream)}" for stream in range(plan.streams)]
        recordings += await asyncio.gather(*(target.server.ask(prompt, _OUTPUT_TOKENS) for prompt in prompts))
    outcome = read_all(recordings)
    read = [answer.prompt_tokens - (answer.cached_tokens or 0) for answer in outcome.answers]
    longest = max((answer.prompt_tokens for answer in outcome.answers), default=0)
    figures = answer_figures(outcome.answers, plan.streams)
    figures["prompts_read"] = sum(read) / longest / plan.repeats if longest else None
    case = Case(_CASE, plan.streams, plan.prefix_tokens + plan.new_tokens, _OUTPUT_TOKENS)
    return [Measurement(target.server.label, case, number, figures, len(outcome.answers), tuple(outcome.errors))]
