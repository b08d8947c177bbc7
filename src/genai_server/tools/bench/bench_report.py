"""The report of a benchmark, as texts and tables for people (`as_parts`) and as JSON for programs (`as_json`).

It has the figures of each server, such as the time to the first token, and ratios between two servers or two kinds of
request. A ratio is computed within each round of measurements, so that the effects of a slow or busy machine cancel
out.
"""

import dataclasses
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from genai_server.plain_tables import Rows
from genai_server.tools.bench import scenarios
from genai_server.tools.bench.measurement import (
    Case,
    Figures,
    Measurement,
    Spread,
    Summary,
    latencies,
    spread,
    summarize,
)
from genai_server.tools.bench.plan import Plan

_LIBRARIES = {
    scenarios.TUNED: "the bare og.Generator loop, same threads",
    scenarios.SHIPPED: "the bare og.Generator loop as shipped",
}
_SWEEPS = (scenarios.SWEEP, scenarios.WITHOUT_DRAFTS)
# Title, figure, and the cases of the numerator and the denominator.
_CASES = (
    ("TTFT p50, cached prefix: against cold", "ttft_p50", scenarios.CACHED, scenarios.COLD),
    (
        "ITL p95, streams during a prompt: against undisturbed",
        "itl_p95",
        scenarios.DISTURBED,
        scenarios.UNDISTURBED,
    ),
    (
        "time of a question, chats that begin with the text: against decisions",
        "seconds_per_question",
        scenarios.TEXT_FIRST,
        scenarios.DECISIONS,
    ),
    (
        "time of a question, chats that begin with it: against decisions",
        "seconds_per_question",
        scenarios.QUESTION_FIRST,
        scenarios.DECISIONS,
    ),
    ("TTFT p50, prompt alongside streams: against alone", "ttft_p50", scenarios.ALONGSIDE, scenarios.ALONE),
    (
        "TTFT p50, short prompt behind a long one: against alongside streams",
        "ttft_p50",
        scenarios.SHORT_BEHIND,
        scenarios.SHORT_ALONGSIDE,
    ),
)
_Side = tuple[str, Case]


@dataclass(frozen=True)
class Ratio:
    """One line of the report's table of ratios: how many times as large a figure is on one server or for one kind of
    request (case) as on or for another.

    `title` says what is compared, `target` is the server whose figure is the numerator, and `value` has the median,
    minimum and maximum of the ratio over the rounds.
    """

    target: str
    title: str
    value: Spread


def ratios(measurements: Sequence[Measurement]) -> list[Ratio]:
    """Return all ratios that can be computed from a benchmark's measurements, in the order in which their numerators
    were first measured. A ratio compares two measurements of the same round.
    """
    result = []
    figures = {
        (measurement.target, measurement.case, measurement.round): measurement.figures for measurement in measurements
    }
    rounds = sorted({measurement.round for measurement in measurements})
    for title, figure, above, below in _pairs(
        list(dict.fromkeys((measurement.target, measurement.case) for measurement in measurements))
    ):
        values = []
        for number in rounds:
            upper, lower = (figures.get((*side, number), {}) for side in (above, below))
            is_as_named = _is_as_named(above[1], upper) and _is_as_named(below[1], lower)
            values.append(_quotient(upper, lower, figure) if is_as_named else None)
        value = spread(values)
        if value is not None:
            result.append(Ratio(above[0], title, value))
    return result


def _quotient(upper: Figures, lower: Figures, figure: str) -> float | None:
    above, below = upper.get(figure), lower.get(figure)
    return above / below if above is not None and below else None


def _is_as_named(case: Case, figures: Figures) -> bool:
    """Whether a measurement may be used under the name of its case. Only a measurement of the case "without drafts"
    that had draft tokens may not be.

    A server may use speculative decoding for all requests, although the benchmark switches it off for this case.
    `figures` are those of the measurement.
    """
    return case.name != scenarios.WITHOUT_DRAFTS or not figures.get("drafted_tokens")


def _pairs(sides: Sequence[_Side]) -> Iterator[tuple[str, str, _Side, _Side]]:
    """Yield what ratios the report shall have. Each is a tuple: the title, the name of the figure, and the numerator's
    and the denominator's side, a side being a server (or the library) and a case.

    `sides` are the sides that were measured.
    """
    servers = list(dict.fromkeys(target for target, _ in sides if target not in _LIBRARIES))
    for target, case in sides:
        if target in _LIBRARIES:
            continue
        yield from _own_pairs(target, case, sides)
        if target != servers[0] and case.name == scenarios.SWEEP:
            title = f"tokens/s, {_describe(case)}: against {servers[0]}"
            yield title, "tokens_per_second", (target, case), (servers[0], case)


def _own_pairs(target: str, case: Case, sides: Sequence[_Side]) -> Iterator[tuple[str, str, _Side, _Side]]:
    current = (target, case)
    for other, below in sides:
        lengths, other_lengths = ((each.prompt_tokens, each.output_tokens) for each in (case, below))
        if case.name in _SWEEPS and below.name in _SWEEPS and lengths == other_lengths:
            if other in _LIBRARIES and case.streams == 1:
                title = f"decode tokens/s, {_describe(case)}: against {_LIBRARIES[other]}"
                yield title, "decode_tokens_per_second", current, (other, below)
            elif other == target and below.streams == 1 < case.streams:
                title = f"decode tokens/s, {_describe(case)}: against one stream{_drafts(below)}"
                yield title, "decode_tokens_per_second", current, (other, below)
        elif other == target:
            for title, figure, upper, lower in _CASES:
                if (case.name, below.name) == (upper, lower):
                    yield title, figure, current, (other, below)


def _describe(case: Case) -> str:
    streams = "1 stream" if case.streams == 1 else f"{case.streams} streams"
    return f"{streams} of {case.prompt_tokens}+{case.output_tokens} tokens{_drafts(case)}"


def _drafts(case: Case) -> str:
    return ", no drafts" if case.name == scenarios.WITHOUT_DRAFTS else ""


# Title, figure, and the factor from its unit to the shown one.
_COLUMNS = (
    ("TTFT p50 ms", "ttft_p50", 1000),
    ("TTFT p95 ms", "ttft_p95", 1000),
    ("TPOT p50 ms", "tpot_p50", 1000),
    ("ITL p50 ms", "itl_p50", 1000),
    ("ITL p95 ms", "itl_p95", 1000),
    ("ITL p99 ms", "itl_p99", 1000),
    ("tokens/s", "tokens_per_second", 1),
    ("decode tokens/s", "decode_tokens_per_second", 1),
    ("prefill tokens/s", "prefill_tokens_per_second", 1),
    ("HTTP core-ms a token", "cpu_per_token", 1000),
    ("cached", "cached_tokens", 1),
    ("accepted drafts", "drafted_tokens", 1),
    ("prompts read", "prompts_read", 1),
    ("ms a question", "seconds_per_question", 1000),
)


@dataclass(frozen=True)
class TargetInfo:
    """What the report of a benchmark says about one measured server: its label, URL and model, the response times of
    its health endpoint in seconds, and how many health requests failed.
    """

    label: str
    url: str
    model: str | None
    # Times of all health probes, in seconds.
    health: Sequence[float] = ()
    health_failed: int = 0


@dataclass
class Report:
    """The results of a benchmark, finished or interrupted: the plan, the servers and all measurements. `as_parts` and
    `as_json` show it.
    """

    plan: Plan
    targets: Sequence[TargetInfo]
    measurements: list[Measurement] = field(default_factory=list)
    interrupted: bool = False

    @property
    def summaries(self) -> list[Summary]:
        """The measurements of each case (kind of request) on each server, combined over the rounds."""
        return summarize(self.measurements)

    @property
    def ratios(self) -> list[Ratio]:
        """How figures of two servers, or of two kinds of request, compare: the ratios of measurements of the same
        round.
        """
        return ratios(self.measurements)

    @property
    def all_failed(self) -> bool:
        """Whether no request of the whole benchmark succeeded."""
        return not any(measurement.completed for measurement in self.measurements)


def as_json(report: Report) -> dict[str, Any]:
    """Return a benchmark's report as a dictionary that can be written as JSON: the plan, the machine, the servers, the
    measurements of each round, their summaries and the ratios.

    Times are in seconds, rates in tokens per second; None means unknown.
    """
    return {
        "scenario": report.plan.scenario,
        "interrupted": report.interrupted,
        "machine": {"platform": platform.platform(), "python": platform.python_version(), "cpus": os.cpu_count()},
        "plan": {name: _plain(value) for name, value in dataclasses.asdict(report.plan).items()},
        "targets": [
            {"label": target.label, "url": target.url, "model": target.model, "health": health_figures(target)}
            for target in report.targets
        ],
        "summaries": [dataclasses.asdict(summary) for summary in report.summaries],
        "ratios": [dataclasses.asdict(ratio) for ratio in report.ratios],
        "measurements": [dataclasses.asdict(measurement) for measurement in report.measurements],
    }


def health_figures(target: TargetInfo) -> Figures | None:
    """Return statistics of all requests to a server's health endpoint: percentiles of the response times in seconds,
    and the numbers of answered (`probes`) and `failed` requests. Returns None if there were no such requests.
    """
    if not target.health and not target.health_failed:
        return None
    figures = latencies("health", target.health, 50, 99, 100)
    return {**figures, "probes": len(target.health), "failed": target.health_failed}


def as_parts(report: Report) -> list[str | Rows]:
    """Return a benchmark's report for people: a list of texts and tables (lists of rows), to be printed one after the
    other.
    """
    parts: list[str | Rows] = [_heading(report)]
    summaries = report.summaries
    if summaries:
        parts.append(_summary_rows(summaries))
    if report.ratios:
        rows = [["ratio of each round", "target", "value"]]
        rows += [[ratio.title, ratio.target, _cell(ratio.value, "{:.3f}".format)] for ratio in report.ratios]
        parts.append(rows)
    parts += [line for target in report.targets if (line := _health_line(target))]
    parts += [
        f"{summary.failed} failed: {summary.target}, {summary.case.name}, {summary.case.streams} at once: "
        f"{summary.first_error}"
        for summary in summaries
        if summary.failed
    ]
    if report.interrupted:
        parts.append("Interrupted: these are the measurements so far.")
    return parts


def _heading(report: Report) -> str:
    plan = report.plan
    of = "1 round" if plan.rounds == 1 else f"{plan.rounds} rounds: median (min–max)"
    lines = [f"{plan.scenario}, {of}"]
    lines += [f"{target.label}: {target.url}, model {target.model or 'not named'}" for target in report.targets]
    return "\n".join(lines)


def _summary_rows(summaries: Sequence[Summary]) -> Rows:
    columns = [column for column in _COLUMNS if any(summary.figures.get(column[1]) for summary in summaries)]
    # The cases of a sweep differ only in their numbers.
    with_name = len({summary.case.name for summary in summaries}) > 1
    name = ["case"] if with_name else []
    rows = [["target", *name, "streams", "prompt", "output", *(title for title, _, _ in columns), "failed"]]
    for summary in summaries:
        case, total = summary.case, summary.completed + summary.failed
        lengths = [
            str(round(measured.median)) if measured else str(configured)
            for measured, configured in (
                (summary.figures.get("prompt_tokens"), case.prompt_tokens),
                (summary.figures.get("output_tokens"), case.output_tokens),
            )
        ]
        cells = [_cell(summary.figures.get(figure), partial(_number, scale=scale)) for _, figure, scale in columns]
        name = [case.name] if with_name else []
        rows.append([summary.target, *name, str(case.streams), *lengths, *cells, f"{summary.failed}/{total}"])
    return rows


def _cell(value: Spread | None, form: Callable[[float], str]) -> str:
    if value is None:
        return "–"
    shown = form(value.median)
    return shown if value.rounds == 1 else f"{shown} ({form(value.min)}–{form(value.max)})"


def _number(value: float, scale: float = 1) -> str:
    """Return `value` times `scale` as a text with at most three significant digits and two decimals, for a table."""
    value *= scale
    if value == 0:
        return "0"
    return f"{value:.{min(2, max(0, 2 - math.floor(math.log10(abs(value)))))}f}"


def _health_line(target: TargetInfo) -> str:
    figures = health_figures(target)
    if figures is None:
        return ""
    times = ", ".join(
        f"{title} {_number(value, 1000)} ms"
        for title, name in (("p50", "health_p50"), ("p99", "health_p99"), ("max", "health_p100"))
        if (value := figures[name]) is not None
    )
    return f"{target.label}: health probe during all of it: {times} ({len(target.health)} probes, " + (
        f"{target.health_failed} failed)"
    )


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float | tuple) else str(value)
