"""Measurements: figures (named values) for each target, case and round."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from genai_server.tools.bench.statistics import Figures, Spread, spread


@dataclass(frozen=True)
class Case:
    """A kind of request: a name, the number of concurrent streams, and the lengths in tokens."""

    name: str
    streams: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Measurement:
    """The results of a case on a target in one round."""

    target: str
    case: Case
    round: int
    figures: Figures
    completed: int
    # One text for each failed request.
    errors: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Summary:
    """The results of a case on a target, combined over all rounds."""

    target: str
    case: Case
    figures: dict[str, Spread | None]
    completed: int
    failed: int
    first_error: str | None


def summarize(measurements: Iterable[Measurement]) -> list[Summary]:
    """Combine the rounds of each case and target, in the order in which they first occur."""
    rounds: dict[tuple[str, Case], list[Measurement]] = {}
    for measurement in measurements:
        rounds.setdefault((measurement.target, measurement.case), []).append(measurement)
    return [_summary(target, case, found) for (target, case), found in rounds.items()]


def _summary(target: str, case: Case, rounds: Sequence[Measurement]) -> Summary:
    names = dict.fromkeys(name for measurement in rounds for name in measurement.figures)
    errors = [error for measurement in rounds for error in measurement.errors]
    return Summary(
        target,
        case,
        {name: spread([measurement.figures.get(name) for measurement in rounds]) for name in names},
        sum(measurement.completed for measurement in rounds),
        len(errors),
        errors[0] if errors else None,
    )
