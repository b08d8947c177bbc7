"""The disturbance scenario: how a long prompt and running streams slow each other down."""

import asyncio
from collections.abc import Sequence

from genai_server.tools.bench.bench_client import Recording, Server
from genai_server.tools.bench.bench_prompts import words
from genai_server.tools.bench.measured_answer import Answer, AnswerError, text_times
from genai_server.tools.bench.measurement import Case, Measurement
from genai_server.tools.bench.plan import Plan
from genai_server.tools.bench.statistics import answer_figures, gaps_within, latencies
from genai_server.tools.bench.target import Target

UNDISTURBED, DISTURBED = "streams undisturbed", "streams during prompt"
ALONE, ALONGSIDE = "prompt alone", "prompt alongside streams"
# More than one token, so that the gaps around the first one end.
_OUTPUT_TOKENS = 8
# Events of each stream before the prompt is sent; the undisturbed gaps lie between them.
_UNDISTURBED_EVENTS = 65
_TOO_SHORT = "a stream ended before the prompt's first token: raise --output-tokens"


async def measure(target: Target, plan: Plan, number: int) -> list[Measurement]:
    """One round on one server. Each repeat is a prompt alone, then another one alongside running streams."""
    findings = _Findings()
    for repeat in range(plan.repeats):
        await _disturb(target, plan, findings, (plan.seed, target.copy, number, repeat))
    return findings.measurements(target.server.label, plan, number)


class _Findings:
    """The gaps in seconds, the answers to the prompts and the failures, by case."""

    def __init__(self) -> None:
        self.gaps: dict[str, list[float]] = {UNDISTURBED: [], DISTURBED: []}
        self.answers: dict[str, list[Answer]] = {ALONE: [], ALONGSIDE: []}
        self.errors: dict[str, list[str]] = {name: [] for name in (UNDISTURBED, DISTURBED, ALONE, ALONGSIDE)}

    def add_prompt(self, name: str, recording: Recording) -> Answer | None:
        """Add the answer to a prompt, or its failure."""
        try:
            answer = recording.answer()
        except AnswerError as error:
            self.errors[name].append(str(error))
            return None
        self.answers[name].append(answer)
        return answer

    def add_streams(self, recordings: Sequence[Recording], prompt: Answer) -> None:
        """Add the gaps before the prompt was sent, while all streams ran, and those until its first token."""
        times = []
        for recording in recordings:
            try:
                times.append(text_times(recording.pieces))
            except AnswerError as error:
                recording.error = recording.error or str(error)
            if recording.error is not None:
                self.errors[UNDISTURBED].append(recording.error)
        if not times or not all(times) or not prompt.chunks:
            return
        all_run = max(moments[0] for moments in times)
        for moments in times:
            before = [moment for moment in moments if moment <= prompt.sent]
            self.gaps[UNDISTURBED] += gaps_within(before, all_run, prompt.sent)
            self.gaps[DISTURBED] += gaps_within(moments, prompt.sent, prompt.chunks[0])
            if moments[-1] < prompt.chunks[0]:
                self.errors[DISTURBED].append(_TOO_SHORT)

    def measurements(self, label: str, plan: Plan, number: int) -> list[Measurement]:
        """One measurement for each of the four cases."""
        found = []
        for name, gaps in self.gaps.items():
            case = Case(name, plan.streams, plan.stream_tokens, plan.output_tokens)
            completed = plan.streams * plan.repeats - len(self.errors[name])
            figures = latencies("itl", gaps, 50, 95, 99)
            found.append(Measurement(label, case, number, figures, completed, tuple(self.errors[name])))
        for name, answers in self.answers.items():
            case = Case(name, 1, plan.disturbing_tokens, _OUTPUT_TOKENS)
            figures = answer_figures(answers, 1)
            found.append(Measurement(label, case, number, figures, len(answers), tuple(self.errors[name])))
        return found


async def _disturb(target: Target, plan: Plan, findings: _Findings, key: tuple[object, ...]) -> None:
    long, short = (target.calibration.words_for(n) for n in (plan.disturbing_tokens, plan.stream_tokens))
    alone = await target.server.ask(words(long, *key, ALONE), _OUTPUT_TOKENS)
    findings.add_prompt(ALONE, alone)
    prompts = [words(short, *key, stream) for stream in range(plan.streams)]
    streams, recording = await ask_alongside(target.server, prompts, plan.output_tokens, words(long, *key, ALONGSIDE))
    prompt = findings.add_prompt(ALONGSIDE, recording)
    if prompt is not None:
        findings.add_streams(streams, prompt)


async def ask_alongside(
    server: Server, prompts: Sequence[str], max_tokens: int, prompt: str
) -> tuple[list[Recording], Recording]:
    """Start streams, send a prompt when all are under way, and cancel them when it is answered."""
    streams = [Recording(_UNDISTURBED_EVENTS) for _ in prompts]
    tasks = [
        asyncio.create_task(server.ask(text, max_tokens, stream)) for text, stream in zip(prompts, streams, strict=True)
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
