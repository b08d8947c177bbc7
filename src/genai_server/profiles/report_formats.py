"""Shows the report on a profile (report.py) as tables for a terminal (`as_text`, `for_terminal`), or as a single HTML
page, which needs no network and no other file (`as_page`).
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files

import msgspec

from genai_server.plain_tables import Rows, plain_report
from genai_server.profiles.manifest import DECODE
from genai_server.profiles.report import OTHER, Report, SlowToken, TimeShare

_MAX_LAYERS = 8
# Characters of a request id that usually identify it.
_SHORT_NAME = 16
# Minimum width of a terminal that shows the operators of slow nodes.
_WIDE = 120

_PLACEHOLDER = "{{report}}"
_INLINE = re.compile(r"<(?:script|style)>(.*?)</(?:script|style)>", re.DOTALL)


def as_text(report: Report, max_rows: int = 10) -> str:
    """Return the report as plain text. Tables are as wide as they need to be, and have at most `max_rows` rows each."""
    parts = [*_beginning(report), *_shares_of_all(report, max_rows), *_slow(report, max_rows), *_unread(report)]
    return plain_report(parts)


def for_terminal(report: Report, width: int, max_rows: int = 10) -> list[str | Rows]:
    """Return the report as a list of paragraphs and tables for a terminal of `width` columns, the slow tokens first.

    A table is a list of rows, the first of which has the titles, and has at most `max_rows` other rows. Request ids are
    shortened (`short_names`). On a narrow terminal, slow nodes are listed without their operators.
    """
    names = short_names(
        {forward_pass.request_id for forward_pass in report.passes if forward_pass.request_id is not None}
    )
    slow = _slow(report, max_rows, names, with_operators=width >= _WIDE)
    return [*_beginning(report), *slow, *_shares_of_all(report, max_rows), *_unread(report)]


def short_names(ids: Iterable[str]) -> dict[str, str]:
    """Return a short name for each request id: its beginning, as long as needed to distinguish all ids, followed by `…`
    if it was cut.
    """
    all_ids = list(dict.fromkeys(ids))
    for length in range(_SHORT_NAME, max(map(len, all_ids), default=0)):
        names = {each: each if len(each) <= length + 1 else f"{each[:length]}…" for each in all_ids}
        if len(set(names.values())) == len(all_ids):
            return names
    return {each: each for each in all_ids}


def _beginning(report: Report) -> list[str | Rows]:
    findings = "\n".join(f"* {finding}" for finding in report.findings)
    return [_heading(report), findings] if findings else [_heading(report)]


def _shares_of_all(report: Report, max_rows: int) -> list[str | Rows]:
    return [
        _phases(report),
        _shares("operator", report.operators[:max_rows], report),
        _shares("node", report.nodes_by_time[:max_rows], report),
        _shares("layer", report.layers[:_MAX_LAYERS], report),
        *([_threads(report, max_rows)] if report.threads else []),
    ]


def _unread(report: Report) -> list[str | Rows]:
    return [f"not read: {name}: {reason}" for name, reason in report.unread.items()]


def _heading(report: Report) -> str:
    requests = {forward_pass.request_id for forward_pass in report.passes} - {None}
    of = f" of {_count(len(requests), 'request')}" if requests else ""
    share = 100 * (1 - report.other_us / report.total_us) if report.total_us else 0
    lines = [report.name]
    session = report.session
    if session is not None:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(session.versions.items()))
        lines.append(f"model {session.model} on {session.device}, {_count(session.threads, 'thread')} of an operator")
        lines[-1] += f" on {_count(session.cores, 'core')}"
        lines.append(versions)
    lines.append(
        f"{_count(len(report.passes), 'pass', 'passes')}{of}, {_ms(report.total_us)} ms, {share:.0f} % kernels"
    )
    if report.profiled is not None and (step := report.profiled.step_ms) is not None:
        lines.append(f"a profiled decode step took {step:.2f} ms (median, with all costs of profiling)")
        if (other_ms := report.profiled.other_step_ms) is not None:
            lines[-1] += f", an unprofiled one {other_ms:.2f} ms"
    return "\n".join(lines)


def _phases(report: Report) -> Rows:
    rows = [["phase", "passes", "tokens", "ms", "ms/pass median", "tokens/s", "not kernels", "cores at work"]]
    for phase in report.phases:
        rate = phase.tokens / phase.total_us * 1e6 if phase.tokens and phase.total_us else None
        rows.append(
            [
                phase.phase,
                str(phase.passes),
                _maybe(phase.tokens, "{}"),
                _ms(phase.total_us),
                _ms(phase.median_us),
                _maybe(rate, "{:.0f}"),
                _percent(phase.other_us, phase.total_us),
                _maybe(phase.cores, "{:.2f}"),
            ]
        )
    return rows


def _shares(title: str, shares: Sequence[TimeShare], report: Report) -> Rows:
    phases = [phase.phase for phase in report.phases]
    rows = [[title, "calls", "ms", "share", *(f"{phase} ms" for phase in phases)]]
    for share in shares:
        parts = [_ms(share.by_phase.get(phase, 0)) for phase in phases]
        rows.append(
            [share.name, str(share.calls), _ms(share.total_us), _percent(share.total_us, report.total_us), *parts]
        )
    return rows


def _threads(report: Report, max_rows: int) -> Rows:
    rows = [["threads of", "calls", "shared", "ms", "own share ms", "waiting ms"]]
    for share in report.threads[:max_rows]:
        cells = (str(share.calls), _percent(share.shared_calls, share.calls))
        rows.append([share.name, *cells, *map(_ms, (share.total_us, share.run_us, share.wait_us))])
    return rows


def _slow(
    report: Report, max_rows: int, names: Mapping[str, str] | None = None, *, with_operators: bool = True
) -> list[str | Rows]:
    """Return a sentence and a table about the slow tokens of a report, at most `max_rows` of them; empty if the profile
    has no decode tokens.

    `names` has the short names of the requests by id; None stands for full ids. If there is only one request, the table
    does not name it. With `with_operators`, the table shows the operator of each node.
    """
    if report.median_decode_us is None:
        return []
    limit = f"{report.slow_at:g} times the median of {_ms(report.median_decode_us)} ms"
    if not report.slow_tokens:
        return [f"No decode token took more than {limit}."]
    rows = [["slow", "ms", "× median", "because of", "ms", "more than usual"]]
    for token in report.slow_tokens[:max_rows]:
        first = [_token_name(token, names), _ms(token.duration_us), f"{token.ratio:.1f}"]
        for node in token.because[:3]:
            is_plain = node.name == OTHER or not with_operators
            name = node.name if is_plain else f"{node.name} ({node.operator})"
            rows.append([*first, name, _ms(node.duration_us), f"+{_ms(node.excess_us)}"])
            first = ["", "", ""]
    decodes = sum(phase.passes for phase in report.phases if phase.phase == DECODE)
    return [f"{len(report.slow_tokens)} of {_count(decodes, 'decode token')} took more than {limit}.", rows]


def _token_name(token: SlowToken, names: Mapping[str, str] | None) -> str:
    if names is None or token.token is None or token.request_id is None:
        return token.name
    return f"token {token.token}" + (f" of {names[token.request_id]}" if len(names) > 1 else "")


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f}"


def _percent(part: float, total: float) -> str:
    return f"{100 * part / total:.1f} %" if total else "–"


def _maybe(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _count(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def as_page(report: Report) -> str:
    """Return the report as the text of an HTML page. The page contains the report as JSON, which its script shows."""
    data = msgspec.json.encode(report).decode()
    # Names of nodes and requests must not close the element that contains them.
    return _template().replace(_PLACEHOLDER, data.replace("<", "\\u003c"))


@cache
def inline_hashes() -> tuple[str, ...]:
    """Return the hashes of the script and style in the report's HTML page, in the format of a Content-Security-Policy,
    so that a server can allow exactly these.
    """
    texts = _INLINE.findall(_template())
    return tuple(f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}" for text in texts)


def _template() -> str:
    return files(__package__).joinpath("page.html").read_text(encoding="utf-8")
