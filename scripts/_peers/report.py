"""The measurements of all servers as one table, and what speaks against comparing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genai_server.tools.bench.measurement import Case, Summary

from .measuring import COLD, SHARED

_TITLES = {COLD: "new", SHARED: "cached"}
# Title, figure, and the factor from its unit to the shown one.
_FIGURES = (("tokens/s", "tokens_per_second", 1), ("TTFT ms", "ttft_p50", 1000))
_EQUAL = ("prompt_tokens", "output_tokens")


def rows(summaries: Sequence[Summary], weights: Mapping[str, str], missing: Mapping[str, str]) -> list[list[str]]:
    """A row for each prompt length and server: tokens/s and TTFT for each number of clients, medians of the rounds.

    `missing` has the servers that could not be measured, with the reason.
    """
    clients = sorted({summary.case.streams for summary in summaries})
    head = ["prompt", "its beginning", "server", "weights"]
    head += [f"{title}, {number} client{'s' * (number > 1)}" for title, _, _ in _FIGURES for number in clients]
    found = {(summary.target, summary.case): summary for summary in summaries}
    lines = list(dict.fromkeys((s.case.prompt_tokens, s.case.name, s.case.output_tokens) for s in summaries))
    table = [head]
    for length, name, output in sorted(lines, key=lambda line: (line[0], line[1] != COLD)):
        for target in dict.fromkeys(summary.target for summary in summaries):
            cells = [f"{length:,}", _TITLES[name], target, weights[target]]
            for _, figure, scale in _FIGURES:
                for number in clients:
                    cells.append(_cell(found.get((target, Case(name, number, length, output))), figure, scale))
            table.append(cells)
    blank = ["–"] * (len(head) - 4)
    for target, reason in missing.items():
        in_a_cell = " ".join(reason.replace("|", "/").split())
        table.append(["–", "–", target, f"not measured: {in_a_cell}", *blank])
    return table


def _cell(summary: Summary | None, figure: str, scale: float) -> str:
    value = summary.figures.get(figure) if summary is not None else None
    if value is None:
        return "–"
    shown = value.median * scale
    return f"{shown:,.0f}" if shown >= 100 else f"{shown:.3g}"


def complaints(summaries: Sequence[Summary]) -> list[str]:
    """Requests that failed, and lengths in which the servers differ, so that their figures cannot be compared."""
    found = [
        f"{each.target}, {_describe(each.case)}: {each.failed} requests failed: {each.first_error}"
        for each in summaries
        if each.failed
    ]
    for case in dict.fromkeys(summary.case for summary in summaries):
        for name in _EQUAL:
            counts = {
                summary.target: value.median
                for summary in summaries
                if summary.case == case and (value := summary.figures.get(name)) is not None
            }
            if len(set(counts.values())) > 1:
                found.append(f"{_describe(case)}: {name} differ: {counts}")
    return found


def _describe(case: Case) -> str:
    return f"{_TITLES[case.name]} prompts of {case.prompt_tokens} tokens, {case.streams} at once"
