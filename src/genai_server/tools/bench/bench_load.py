"""A closed load: a number of concurrent streams, each of which sends its next request when the last one has
ended.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genai_server.tools.bench.bench_client import Recording, Server
from genai_server.tools.bench.measured_answer import Answer, AnswerError
from genai_server.tools.bench.measurement import Case, Measurement
from genai_server.tools.bench.statistics import Figures, answer_figures


@dataclass(frozen=True)
class Outcome:
    """The answers and errors of a number of requests."""

    answers: list[Answer]
    errors: list[str]

    def measurement(self, target: str, case: Case, number: int, more: Figures | None = None) -> Measurement:
        """Return the measurement of a case in round `number`, from the statistics of the answers and `more`
        figures.
        """
        figures = answer_figures(self.answers, case.streams) | (more or {})
        return Measurement(target, case, number, figures, len(self.answers), tuple(self.errors))


async def run_load(
    server: Server, prompts: Sequence[str], max_tokens: int, streams: int, more: Mapping[str, Any] = {}
) -> Outcome:
    """Send all prompts, `streams` of them at a time, and parse the answers when all have ended.

    `more` are fields of these requests only.
    """
    recordings: list[Recording] = []
    waiting = iter(prompts)

    async def stream() -> None:
        for prompt in waiting:
            recordings.append(await server.ask(prompt, max_tokens, more=more))

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return read_all(recordings)


def read_all(recordings: Sequence[Recording]) -> Outcome:
    """Parse recordings. Returns complete answers, and the errors of the others."""
    outcome = Outcome([], [])
    for recording in recordings:
        try:
            outcome.answers.append(recording.answer())
        except AnswerError as error:
            outcome.errors.append(str(error))
    return outcome
