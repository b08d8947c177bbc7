"""The scenarios of a benchmark: `measure_sweep`, `measure_prefix`, `measure_crowd`, `measure_fairness`,
`measure_disturbance` and `measure_decisions`. Each function sends the requests of one round to one server and returns
the measurements.

The sweep measures each number of concurrent streams with each prompt length. Every prompt is new to the server. The
bare library does not support speculative decoding, so each server is also measured without draft tokens.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from genai_server.tools.bench.bench_client import (
    FAILURES,
    Outcome,
    Recording,
    Server,
    Target,
    read_all,
    run_load,
    words,
)
from genai_server.tools.bench.measurement import (
    Answer,
    AnswerError,
    Case,
    Figures,
    Measurement,
    gaps_within,
    latencies,
    per_token,
    text_times,
)
from genai_server.tools.bench.plan import Plan
from genai_server.tools.server_answers import error_message, unanswered

# Started by name: importing it would load the engine and the library.
_BARE_LOOP = "genai_server.engine.bare_loop"
TUNED, SHIPPED = "library", "library as shipped"
_OPTIONS = {TUNED: ["--threads", "0"], SHIPPED: []}
SWEEP = "sweep"
WITHOUT_DRAFTS = "sweep without drafts"
# With a seed this server drafts no tokens, because the same seed must give the same tokens.
_NO_DRAFTS: dict[str, Any] = {"seed": 0}


def sweep_points(plan: Plan, targets: list[Target]) -> Iterator[tuple[Target | str, Case]]:
    """Yield what to measure in one round of a sweep, in order: each prompt length with each number of streams, on every
    server in turn. Each item is a server or the label of the bare library, and a case.

    The bare library is measured before the servers for each prompt length, if the plan includes it.
    """
    for length in plan.prompt_tokens:
        if plan.library is not None:
            alone = Case(SWEEP, 1, length, plan.output_tokens)
            yield from ((label, alone) for label in (TUNED, SHIPPED))
            undrafted = Case(WITHOUT_DRAFTS, 1, length, plan.output_tokens)
            yield from ((target, undrafted) for target in targets)
        for streams in plan.concurrency:
            case = Case(SWEEP, streams, length, plan.output_tokens)
            yield from ((target, case) for target in targets)


async def measure_sweep(target: Target, plan: Plan, case: Case, number: int) -> Measurement:
    """Measure one case of the sweep (a prompt length and a number of streams) on one server. Returns the measurement.
    `number` is the round, from 0.
    """
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
    """Measure generation with `og.Generator` of onnxruntime-genai, without a server, with the prompt and answer lengths
    of `case`. Returns the measurement. `number` is the round, from 0.

    It runs as many times as a server gets requests with one stream. `label` says how many threads the library has.
    """
    runs = plan.requests_at(1)
    outcome = await run_bare_loop(label, model_dir, case.prompt_tokens, case.output_tokens, runs)
    return outcome.measurement(label, case, number)


async def run_bare_loop(label: str, model_dir: Path, prompt_tokens: int, output_tokens: int, runs: int) -> Outcome:
    """Generate answers with `og.Generator` of onnxruntime-genai in a separate process: `runs` times, each with a prompt
    of `prompt_tokens` tokens and an answer of `output_tokens` tokens. Returns the answers with their times.

    With the label TUNED, the library has as many threads as there are usable cores, with SHIPPED as many as the model
    directory sets.
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


COLD, CACHED = "cold", "cached prefix"
_CROWD = "common beginning at once"
SHORT_ALONGSIDE, SHORT_BEHIND = "short prompt alongside streams", "short prompt behind a long one"
UNDISTURBED, DISTURBED = "streams undisturbed", "streams during prompt"
ALONE, ALONGSIDE = "prompt alone", "prompt alongside streams"
# More than one token, so that the gaps around the first one end.
_OUTPUT_TOKENS = 8
# Seconds after which reading of the long prompt has begun.
_HEAD_START = 0.2
# Events of each stream before the prompt is sent; the undisturbed gaps lie between them.
_UNDISTURBED_EVENTS = 65
DECISIONS, TEXT_FIRST, QUESTION_FIRST = (
    "decisions",
    "chats that begin with the text",
    "chats that begin with a question",
)
_QUESTION_PROMPT = "Is the following true? Answer with JSON."
# Fields of a chat whose answer has a schema, and its longest answer.
_SCHEMA = {
    "ignore_eos": False,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "answer",
            "schema": {
                "type": "object",
                "properties": {"answer": {"type": "boolean"}},
                "required": ["answer"],
                "additionalProperties": False,
            },
        },
    },
}
_MAX_ANSWER = 32
_TOO_SHORT = "a stream ended before the prompt's first token: raise --output-tokens"


async def measure_prefix(target: Target, plan: Plan, number: int) -> list[Measurement]:
    """Measure how much a cached beginning of a prompt shortens the time to the first token. Returns a measurement for
    cold prompts and one for prompts with a cached beginning. `number` is the round, from 0.

    Sends a long new prompt, and then a prompt with the same beginning and another end, one request at a time.
    """
    shared, new = target.calibration.words_for(plan.prefix_tokens), target.calibration.words_in(plan.new_tokens)
    by_case: dict[str, list[Recording]] = {COLD: [], CACHED: []}
    for key in _keys(target, plan, number):
        for name, recordings in by_case.items():
            prompt = f"{words(shared, *key)} {words(new, *key, name)}"
            recordings.append(await target.server.ask(prompt, _OUTPUT_TOKENS))
    return _measurements(target, plan.prefix_tokens + plan.new_tokens, number, by_case)


async def measure_crowd(target: Target, plan: Plan, number: int) -> list[Measurement]:
    """Measure requests that arrive together and begin with the same long text, which is not cached yet: how much of the
    text the server reads more than once. Returns one measurement. `number` is the round, from 0.

    The figure `prompts_read` is the number of prompt tokens that the server processed, divided by those of one prompt.
    It is a little more than 1 at best, and the number of requests if the server has no cache.
    """
    shared, unique = target.calibration.words_for(plan.prefix_tokens), target.calibration.words_in(plan.new_tokens)
    recordings = []
    for key in _keys(target, plan, number):
        prompts = [f"{words(shared, *key)} {words(unique, *key, stream)}" for stream in range(plan.streams)]
        recordings += await asyncio.gather(*(target.server.ask(prompt, _OUTPUT_TOKENS) for prompt in prompts))
    outcome = read_all(recordings)
    num_read = [answer.prompt_tokens - (answer.cached_tokens or 0) for answer in outcome.answers]
    longest = max((answer.prompt_tokens for answer in outcome.answers), default=0)
    case = Case(_CROWD, plan.streams, plan.prefix_tokens + plan.new_tokens, _OUTPUT_TOKENS)
    prompts_read = sum(num_read) / longest / plan.repeats if longest else None
    return [outcome.measurement(target.server.label, case, number, {"prompts_read": prompts_read})]


async def measure_fairness(target: Target, plan: Plan, number: int) -> list[Measurement]:
    """Measure how long a short prompt waits behind a long one, and for comparison how long it waits next to running
    streams. Returns a measurement for each case. `number` is the round, from 0.
    """
    server = target.server
    short, long = (target.calibration.words_for(count) for count in (plan.new_tokens, plan.disturbing_tokens))
    by_case: dict[str, list[Recording]] = {SHORT_ALONGSIDE: [], SHORT_BEHIND: []}
    for key in _keys(target, plan, number):
        _, recording = await _ask_alongside(target, plan, key, words(short, *key, SHORT_ALONGSIDE))
        by_case[SHORT_ALONGSIDE].append(recording)
        before = asyncio.create_task(server.ask(words(long, *key, "long"), _OUTPUT_TOKENS))
        await asyncio.sleep(_HEAD_START)
        by_case[SHORT_BEHIND].append(await server.ask(words(short, *key, SHORT_BEHIND), _OUTPUT_TOKENS))
        await before
    return _measurements(target, plan.new_tokens, number, by_case)


async def measure_disturbance(target: Target, plan: Plan, number: int) -> list[Measurement]:
    """Measure how a long prompt and running streams slow each other down. Returns measurements of the gaps between
    tokens of the streams, with and without the prompt, and of the time to the prompt's first token, alone and next to
    the streams. `number` is the round, from 0.

    Each repeat sends a prompt alone, and then another prompt while streams are running.
    """
    long = target.calibration.words_for(plan.disturbing_tokens)
    by_case: dict[str, list[Recording]] = {ALONE: [], ALONGSIDE: []}
    # In seconds.
    gaps: dict[str, list[float]] = {UNDISTURBED: [], DISTURBED: []}
    errors: dict[str, list[str]] = {UNDISTURBED: [], DISTURBED: []}
    for key in _keys(target, plan, number):
        by_case[ALONE].append(await target.server.ask(words(long, *key, ALONE), _OUTPUT_TOKENS))
        streams, recording = await _ask_alongside(target, plan, key, words(long, *key, ALONGSIDE))
        by_case[ALONGSIDE].append(recording)
        _add_gaps(gaps, errors, streams, recording)
    measurements = []
    for name in (UNDISTURBED, DISTURBED):
        case = Case(name, plan.streams, plan.stream_tokens, plan.output_tokens)
        completed = plan.streams * plan.repeats - len(errors[name])
        figures = latencies("itl", gaps[name], 50, 95, 99)
        measurements.append(Measurement(target.server.label, case, number, figures, completed, tuple(errors[name])))
    return [*measurements, *_measurements(target, plan.disturbing_tokens, number, by_case)]


async def measure_decisions(target: Target, plan: Plan, number: int) -> list[Measurement]:
    """Measure yes-or-no questions about a new text in three ways: all in one request to /v1/decisions, and as chats
    that begin with the text or with the question. Returns a measurement for each way. `number` is the round, from 0.

    Chats have a JSON schema for the answer. For those that begin with the text, the text is cached before the
    measurement begins. `plan.streams` chats of each kind run at once. The time of the decisions includes processing the
    text.
    """
    server, length = target.server, target.calibration.words_for(plan.prefix_tokens)
    questions = [
        f"The text is about {words(2, plan.seed, index)}." for index in range(max(plan.questions, plan.streams))
    ]
    measurements = []
    for key in _keys(target, plan, number):
        texts = {name: words(length, *key, name) for name in (DECISIONS, TEXT_FIRST, QUESTION_FIRST)}
        began = server.clock()
        errors = await _decide(server, texts[DECISIONS], questions[: plan.questions])
        by_case = {DECISIONS: (server.clock() - began, plan.questions, errors)}
        chats = {
            TEXT_FIRST: [f"{texts[TEXT_FIRST]}\n\n{_QUESTION_PROMPT} {question}" for question in questions],
            QUESTION_FIRST: [f"{_QUESTION_PROMPT} {question}\n\n{texts[QUESTION_FIRST]}" for question in questions],
        }
        await server.ask(texts[TEXT_FIRST], 1)
        for name, prompts in chats.items():
            began = server.clock()
            answers = (server.ask(prompt, _MAX_ANSWER, more=_SCHEMA) for prompt in prompts[: plan.streams])
            recordings = await asyncio.gather(*answers)
            by_case[name] = server.clock() - began, plan.streams, read_all(recordings).errors
        for name, (seconds, count, errors) in by_case.items():
            case = Case(name, count, plan.prefix_tokens, 1)
            figures: Figures = {"seconds_per_question": seconds / count}
            measurements.append(Measurement(server.label, case, number, figures, count - len(errors), tuple(errors)))
    return measurements


async def _decide(server: Server, text: str, statements: Sequence[str]) -> list[str]:
    """Send all questions (`statements`) about a text to the endpoint /v1/decisions in one request. Returns an error
    message for each question if the request fails, otherwise an empty list.
    """
    questions = [
        {"type": "predicate", "name": f"q{index}", "instructions": statement}
        for index, statement in enumerate(statements)
    ]
    body = {"model": server.model, "input": text, "questions": questions}
    try:
        status, reason, content = await server.complete(json.dumps(body).encode(), "/v1/decisions")
    except FAILURES as error:
        return [unanswered(server.url, error)] * len(statements)
    return [] if status == 200 else [error_message(status, reason, content)] * len(statements)


MEASURES: dict[str, Callable[[Target, Plan, int], Awaitable[list[Measurement]]]] = {
    "prefix": measure_prefix,
    "disturbance": measure_disturbance,
    "fairness": measure_fairness,
    "crowd": measure_crowd,
    "decisions": measure_decisions,
}


def _keys(target: Target, plan: Plan, number: int) -> Iterator[tuple[object, ...]]:
    """Yield a key for each repeat in round `number`, from which the repeat's prompts are generated. Keys of different
    rounds, repeats and copies of a server differ, and so do the prompts, so that none is cached.
    """
    return ((plan.seed, target.copy, number, repeat) for repeat in range(plan.repeats))


def _measurements(
    target: Target, prompt_tokens: int, number: int, by_case: dict[str, list[Recording]]
) -> list[Measurement]:
    """Return a measurement for each case in `by_case`, which has the recorded responses of each kind of request. The
    requests were sent one at a time, with prompts of `prompt_tokens` tokens, in round `number`.
    """
    return [
        read_all(recordings).measurement(target.server.label, Case(name, 1, prompt_tokens, _OUTPUT_TOKENS), number)
        for name, recordings in by_case.items()
    ]


async def _ask_alongside(
    target: Target, plan: Plan, key: tuple[object, ...], prompt: str
) -> tuple[list[Recording], Recording]:
    """Start `plan.streams` streamed answers, send `prompt` when all of them are running, and cancel them when the
    prompt is answered. The streams have prompts of their own, which are generated from `key`.

    Returns the recordings of the streams, and that of the answer to `prompt`.
    """
    server, count = target.server, target.calibration.words_for(plan.stream_tokens)
    streams = [Recording(_UNDISTURBED_EVENTS) for _ in range(plan.streams)]
    tasks = [
        asyncio.create_task(server.ask(words(count, *key, index), plan.output_tokens, stream))
        for index, stream in enumerate(streams)
    ]
    try:
        for stream in streams:
            await stream.is_under_way.wait()
        recording = await server.ask(prompt, _OUTPUT_TOKENS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return streams, recording


def _add_gaps(
    gaps: dict[str, list[float]], errors: dict[str, list[str]], streams: Sequence[Recording], recording: Recording
) -> None:
    """Sort the gaps between tokens of running streams into two cases: before another prompt was sent, and from then
    until the first token of that prompt's answer. The gaps, in seconds, are added to `gaps` by case.

    `recording` is the recorded response to the other prompt. Failures of streams are added to `errors` by case.
    """
    try:
        prompt = recording.answer()
    except AnswerError:  # counted with the prompts
        return
    times = []
    for stream in streams:
        try:
            times.append(text_times(stream.pieces))
        except AnswerError as error:
            stream.error = stream.error or str(error)
        if stream.error is not None:
            errors[UNDISTURBED].append(stream.error)
    if not times or not all(times) or not prompt.chunks:
        return
    all_run = max(moments[0] for moments in times)
    for moments in times:
        before = [moment for moment in moments if moment <= prompt.sent]
        gaps[UNDISTURBED] += gaps_within(before, all_run, prompt.sent)
        gaps[DISTURBED] += gaps_within(moments, prompt.sent, prompt.chunks[0])
        if moments[-1] < prompt.chunks[0]:
            errors[DISTURBED].append(_TOO_SHORT)
