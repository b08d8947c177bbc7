"""Draws the figures of a benchmark as a picture with matplotlib, for the option `--plot` of `genai-server bench`."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from genai_server.tools.bench import scenarios
from genai_server.tools.bench.bench_report import Report
from genai_server.tools.bench.measurement import Spread, Summary

# Title, figure, and the factor from its unit to the shown one.
_PANELS = (
    ("decode, tokens/s", "decode_tokens_per_second", 1),
    ("complete answer, tokens/s", "tokens_per_second", 1),
    ("TTFT p50, ms", "ttft_p50", 1000),
    ("ITL p95, ms", "itl_p95", 1000),
)
_BARS = {
    "prefix": (("TTFT p50, ms", "ttft_p50", 1000),),
    "fairness": (("TTFT p50, ms", "ttft_p50", 1000),),
    "crowd": (("TTFT p95, ms", "ttft_p95", 1000), ("prompts read", "prompts_read", 1)),
    "disturbance": (("ITL p95, ms", "itl_p95", 1000), ("TTFT p50, ms", "ttft_p50", 1000)),
}


def save_plot(report: Report, path: Path) -> None:
    """Draw a benchmark's report and write the picture to `path`, as PNG or SVG depending on the file's suffix. Raises
    OSError if the file cannot be written.
    """
    panels = _BARS.get(report.plan.scenario, _PANELS)
    columns = 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    # A plain Figure needs no window system and no global state of pyplot.
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)  # in inches
    figure = Figure(figsize=(6.0 * columns, 4.0 * rows), layout=layout)
    for number, (title, name, scale) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(title)
        if report.plan.scenario == "sweep":
            _draw_lines(axes, report.summaries, name, scale)
        else:
            _draw_bars(axes, report.summaries, name, scale)
        axes.grid(alpha=0.3)
    targets = ", ".join(f"{target.label}: {target.url}" for target in report.targets)
    figure.suptitle(f"{report.plan.scenario}, median of the rounds, min to max\n{targets}", fontsize="medium")
    figure.savefig(path, dpi=120)


def _draw_lines(axes: Axes, summaries: Sequence[Summary], name: str, scale: float) -> None:
    """Draw one figure of a sweep into `axes`: for each server and prompt length a line over the number of concurrent
    streams, and for the bare library a horizontal line.

    `name` is the figure, such as `ttft_p50`, and `scale` the factor by which its values are multiplied.
    """
    lines: dict[tuple[str, str, int], list[tuple[int, Spread]]] = {}
    for summary in summaries:
        value = summary.figures.get(name)
        if value is not None:
            case = summary.case
            lines.setdefault((summary.target, case.name, case.prompt_tokens), []).append((case.streams, value))
    for (target, case_name, length), points in lines.items():
        label = f"{target}, {length} tokens" + (", no drafts" if case_name == scenarios.WITHOUT_DRAFTS else "")
        if target in (scenarios.TUNED, scenarios.SHIPPED):
            style = "--" if target == scenarios.TUNED else ":"
            axes.axhline(points[0][1].median * scale, linestyle=style, color="gray", label=label)
            continue
        points.sort(key=lambda point: point[0])
        values = [value for _, value in points]
        axes.errorbar(
            [streams for streams, _ in points],
            [value.median * scale for value in values],
            yerr=_errors(values, scale),
            marker="o",
            capsize=3,
            label=label,
        )
    axes.set_xticks(sorted({summary.case.streams for summary in summaries}))
    axes.set_xlabel("streams at once")
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    if lines:
        axes.legend(fontsize="small", loc="upper left")  # the best place takes seconds to find


def _draw_bars(axes: Axes, summaries: Sequence[Summary], name: str, scale: float) -> None:
    """Draw one figure into `axes`, with a bar for each server and case (kind of request) that has the figure.

    `name` is the figure, such as `ttft_p50`, and `scale` the factor by which its values are multiplied.
    """
    bars = [(summary, value) for summary in summaries if (value := summary.figures.get(name)) is not None]
    if name == "itl_p95":
        bars = [(summary, value) for summary, value in bars if summary.case.streams > 1]
    values = [value for _, value in bars]
    labels = [f"{summary.target}: {summary.case.name}" for summary, _ in bars]
    axes.barh(labels, [value.median * scale for value in values], xerr=_errors(values, scale), capsize=3)
    axes.set_xlim(left=0)
    axes.invert_yaxis()


def _errors(values: Sequence[Spread], scale: float) -> list[list[float]]:
    return [
        [(value.median - value.min) * scale for value in values],
        [(value.max - value.median) * scale for value in values],
    ]
