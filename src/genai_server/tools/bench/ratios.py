"""Ratios of measurements of the same round, in which the effects of a slow or busy machine cancel out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from genai_server.tools.bench import scenarios, sweep
from genai_server.tools.bench.measurement import Case, Figures, Measurement, Spread, spread

_LIBRARIES = {
    sweep.TUNED: "the bare og.Generator loop, same threads",
    sweep.SHIPPED: "the bare og.Generator loop as shipped",
}
_SWEEPS = (sweep.NAME, sweep.WITHOUT_DRAFTS)
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
    """The ratio of a figure in two cases, or on two servers, with its median, minimum and maximum over the rounds."""

    target: str
    title: str
    value: Spread


def ratios(measurements: Sequence[Measurement]) -> list[Ratio]:
    """Return all ratios that can be computed from these measurements, in the order of the cases."""
    result = []
    figures = {(each.target, each.case, each.round): each.figures for each in measurements}
    rounds = sorted({each.round for each in measurements})
    for title, figure, above, below in _pairs(list(dict.fromkeys((each.target, each.case) for each in measurements))):
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
    """Whether a measurement in the case "without drafts" was without draft tokens; True for other cases.

    A server may use speculative decoding for all requests, although the benchmark switches it off for this case.
    """
    return case.name != sweep.WITHOUT_DRAFTS or not figures.get("drafted_tokens")


def _pairs(sides: Sequence[_Side]) -> Iterator[tuple[str, str, _Side, _Side]]:
    """Yield each ratio to compute: title, name of the figure, and the target and case of numerator and denominator.

    `sides` are the targets and cases that were measured.
    """
    servers = list(dict.fromkeys(target for target, _ in sides if target not in _LIBRARIES))
    for target, case in sides:
        if target in _LIBRARIES:
            continue
        yield from _own_pairs(target, case, sides)
        if target != servers[0] and case.name == sweep.NAME:
            title = f"tokens/s, {_describe(case)}: against {servers[0]}"
            yield title, "tokens_per_second", (target, case), (servers[0], case)


def _own_pairs(target: str, case: Case, sides: Sequence[_Side]) -> Iterator[tuple[str, str, _Side, _Side]]:
    here = (target, case)
    for other, below in sides:
        lengths, others = ((each.prompt_tokens, each.output_tokens) for each in (case, below))
        if case.name in _SWEEPS and below.name in _SWEEPS and lengths == others:
            if other in _LIBRARIES and case.streams == 1:
                title = f"decode tokens/s, {_describe(case)}: against {_LIBRARIES[other]}"
                yield title, "decode_tokens_per_second", here, (other, below)
            elif other == target and below.streams == 1 < case.streams:
                title = f"decode tokens/s, {_describe(case)}: against one stream{_drafts(below)}"
                yield title, "decode_tokens_per_second", here, (other, below)
        elif other == target:
            for title, figure, upper, lower in _CASES:
                if (case.name, below.name) == (upper, lower):
                    yield title, figure, here, (other, below)


def _describe(case: Case) -> str:
    streams = "1 stream" if case.streams == 1 else f"{case.streams} streams"
    return f"{streams} of {case.prompt_tokens}+{case.output_tokens} tokens{_drafts(case)}"


def _drafts(case: Case) -> str:
    return ", no drafts" if case.name == sweep.WITHOUT_DRAFTS else ""
