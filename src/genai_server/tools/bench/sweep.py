"""The sweep: each number of concurrent streams with each prompt length. Every prompt is new to the server.

The bare library does not support speculative decoding, so each server is also measured without draft tokens.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genai_server.tools.bench.bench_client import Outcome, run_load
from genai_server.tools.bench.bench_prompts import words
from genai_server.tools.bench.measured_answer import Answer
from genai_server.tools.bench.measurement import Case, Measurement, per_token
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.target import Target

# Started by name: importing it would load the engine and the library.
_BARE_LOOP = "genai_server.engine.bare_loop"
TUNED, SHIPPED = "library", "library as shipped"
_OPTIONS = {TUNED: ["--threads", "0"], SHIPPED: []}
NAME = "sweep"
WITHOUT_DRAFTS = "sweep without drafts"
# With a seed this server drafts no tokens, because the same seed must give the same tokens.
_NO_DRAFTS: dict[str, Any] = {"seed": 0}


def points(plan: Plan, targets: list[Target]) -> Iterator[tuple[Target | str, Case]]:
    """Yield the cases of one round in order: each prompt length and number of streams, on every target in turn.

    The bare library is measured before the servers for each prompt length, if the plan includes it.
    """
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
    """Measure one case of the sweep (a prompt length and a number of streams) on one server in round `number`."""
    count = target.calibration.words_for(case.prompt_tokens)
    prompts = [
        words(count, plan.seed, target.copy, number, case, request) for request in range(plan.requests_at(case.streams))
    ]
    before = target.cpu_seconds()
    more = _NO_DRAFTS if case.name == WITHOUT_DRAFTS else {}
    outcome = await run_load(target.server, prompts, case.output_tokens, case.streams, more)
    cpu = per_token(outcome.answers, before, target.cpu_seconds())
    return outcome.measurement(target.server.label, case, number, {"cpu_per_token": cpu})


async def measure_library(label: str, model_dir: Path, plan: Plan, case: Case, number: int) -> Measurement:
    """Measure the loop of `og.Generator` without a server, with the lengths of a case, in round `number`.

    It runs as many times as a server gets requests with one stream. `label` says how many threads it has.
    """
    runs = plan.requests_at(1)
    outcome = await run_bare_loop(label, model_dir, case.prompt_tokens, case.output_tokens, runs)
    return outcome.measurement(label, case, number)


async def run_bare_loop(label: str, model_dir: Path, prompt_tokens: int, output_tokens: int, runs: int) -> Outcome:
    """Run the loop of `og.Generator` in a separate process, `runs` times with a prompt of `prompt_tokens` tokens and an
    answer of `output_tokens` tokens, and return the answers.

    With the label TUNED it has as many threads as usable cores, with SHIPPED as many as the model directory sets.
    """
    command = [sys.executable, "-m", _BARE_LOOP, str(model_dir), *_OPTIONS[label]]
    command += ["--prompt-tokens", str(prompt_tokens), "--output-tokens", str(output_tokens), "--runs", str(runs)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return Outcome([], [reason or f"{_BARE_LOOP} ended with status {process.returncode}"])
    # The result is the last line: native libraries may print before it.
    report = json.loads(output.decode().strip().rpartition("\n")[2])
    answers = [
        Answer(run["sent"], tuple(run["tokens"]), run["tokens"][-1], prompt_tokens, len(run["tokens"]), 0, 0)
        for run in report["lengths"][str(prompt_tokens)]
    ]
    return Outcome(answers, [])
