"""`genai-server top`: a table of a running server's devices, rates and requests, updated until `q` or Ctrl-C.

If the server has API keys, only the admin key shows the requests.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from prompt_toolkit.input import create_input
from prompt_toolkit.keys import Keys
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from genai_server.cli.option_types import number_from
from genai_server.cli.screen import screen
from genai_server.errors import ServerUnusable
from genai_server.tools.top.snapshot import Interval, Place, Poller, Snapshot

_MAX_REQUESTS = 20
# The texts of a row by column.
Row = Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8002", metavar="URL", help="(default: %(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="the server's GENAI_ADMIN_API_KEY, or an API key")
    parser.add_argument(
        "--interval", type=number_from(0.1, 3600), default=1.0, metavar="S", help="seconds between two polls"
    )
    parser.add_argument("--once", action="store_true", help="poll twice, print the table and exit")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Watch until `q` or Ctrl-C. Raises ServerUnusable if the server cannot be reached."""
    poller = Poller(arguments.url, arguments.api_key)
    with suppress(KeyboardInterrupt):
        if arguments.once:
            _show_once(poller, arguments.interval)
        else:
            asyncio.run(_watch(poller, poller.poll(), arguments.interval))
    return 0


def _show_once(poller: Poller, interval: float) -> None:
    before = poller.poll()
    time.sleep(interval)
    console = screen() or Console()
    with console.capture() as captured:  # rich itself would end the process if the output has no reader
        console.print(view(Interval(before, poller.poll()), console.width if console.is_terminal else None))
    print(captured.get(), end="")


async def _watch(poller: Poller, before: Snapshot, interval: float) -> None:
    console = Console(highlight=False)
    with _end_key() as ended, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(view(Interval(None, before), console.width), refresh=True)
        while not await _is_set(ended, interval):
            try:
                now = await asyncio.to_thread(poller.poll)
            except ServerUnusable as error:
                live.update(f"{error}; trying again", refresh=True)
                continue
            live.update(view(Interval(before, now), console.width), refresh=True)
            before = now


@contextmanager
def _end_key() -> Iterator[asyncio.Event]:
    """An event that `q` or Ctrl-C, typed into the terminal, sets."""
    ended = asyncio.Event()
    if not sys.stdin.isatty():
        yield ended
        return
    keyboard = create_input()

    def read() -> None:
        if any(press.key in ("q", "Q", Keys.ControlC) for press in keyboard.read_keys()):
            ended.set()

    with keyboard.raw_mode(), keyboard.attach(read):
        yield ended


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within this number of seconds."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


def view(interval: Interval, width: int | None) -> RenderableType:
    """The tables of an interval. In a terminal of this width they fit, and name the model of each row."""
    places = interval.now.places()
    with_model = width is not None or len({place.model for place in places}) > 1
    rows = [_device(interval, place, status) for place, status in places.items()]
    columns = [name for name in _COLUMNS if with_model or name != "model"]
    devices = _table(f"genai-server {interval.now.health.get('version', '')}", columns, rows, width)
    if interval.now.refused is not None:
        return Group(devices, _LEGEND, f"requests are not shown: {interval.now.refused}")
    count = len(interval.now.requests)
    rows = [_request(each) for each in interval.now.requests[:_MAX_REQUESTS]]
    columns = [name for name in _REQUEST_COLUMNS if with_model or name != "model"]
    requests = _table(f"{count} request{'s' * (count != 1)}", columns, rows, width)
    more = [f"and {count - _MAX_REQUESTS} more"] if count > _MAX_REQUESTS else [""]
    keys = [] if width is None else ["q quits"]
    return Group(devices, _LEGEND, "", requests, *more, *keys)


_STATES = ("device", "model", "state", "run", "wait", "kv")
_COLUMNS = (*_STATES, "in/s", "out/s", "ans/s", "ttft", "itl", "rows", "hits", "died")
_REQUEST_COLUMNS = ("request", "device", "model", "phase", "age s", "prompt", "cached", "output")
_TEXTS = {"device", "model", "state", "request", "phase"}
# Columns that a narrow terminal omits, in this order.
_LEFT_OUT = ("died", "rows", "ans/s", "hits", "kv", "cached", "in/s", "itl", "age s", "ttft")
# Cells between two columns.
_GAP = 2
# Maximum characters of a name, in a wide terminal first.
_NAME_LENGTHS = (24, 16, 10)
_LEGEND = "a second: tokens in, out, answers; ms: to the first token, between tokens; hits: of prompts, cached"


def _table(title: str, columns: Sequence[str], rows: Sequence[Row], width: int | None) -> Table:
    """A table of these columns, without some of them if the terminal is too narrow."""
    if width is None:
        table = Table(box=None, title=title, title_justify="left")
    else:
        table = Table(box=None, title=title, title_justify="left", padding=(0, _GAP, 0, 0), header_style="bold")
        columns, rows = _fitting(columns, rows, width)
    for name in columns:
        table.add_column(name, justify="left" if name in _TEXTS else "right", no_wrap=width is not None)
    for row in rows:
        table.add_row(*(_coloured(name, row[name], in_terminal=width is not None) for name in columns))
    return table


def _width(columns: Sequence[str], rows: Sequence[Row]) -> int:
    return sum(max(cell_len(text) for text in (name, *(row[name] for row in rows))) + _GAP for name in columns)


def _fitting(columns: Sequence[str], rows: Sequence[Row], width: int) -> tuple[Sequence[str], Sequence[Row]]:
    """The columns and rows that fit: names are shortened, then columns left out, then names shortened further."""
    most = _NAME_LENGTHS[0]
    for most in _NAME_LENGTHS:
        found = [_shortened(row, most) for row in rows]
        if _width(columns, found) <= width:
            return columns, found
        if most != _NAME_LENGTHS[0]:
            for name in _LEFT_OUT:
                columns = [column for column in columns if column != name]
                if _width(columns, found) <= width:
                    return columns, found
    return columns, [_shortened(row, most) for row in rows]


def _shortened(row: Row, width: int) -> Row:
    return {name: text if len(text) <= width else f"{text[: width - 1]}…" for name, text in row.items()}


def _coloured(column: str, text: str, *, in_terminal: bool) -> str | Text:
    if column != "state" or not in_terminal:
        return text
    return Text(text, "green" if text == "ready" else "red" if text in ("failed", "terminated") else "yellow")


def _request(entry: Mapping[str, Any]) -> dict[str, str]:
    tokens = {kind: str(entry[f"{kind}_tokens"]) for kind in ("prompt", "cached", "output")}
    names = {"request": entry["id"], **{name: str(entry[name]) for name in ("device", "model", "phase")}}
    return {**names, "age s": f"{entry['age']:.1f}", **tokens}


def _device(interval: Interval, place: Place, status: Mapping[str, Any]) -> dict[str, str]:
    now = interval.now
    queries = interval.more("prefix_cache_queries_total", place)
    running, slots = (now.value(name, place) for name in ("num_requests_running", "num_slots"))
    return {
        "device": place.device,
        "model": place.model,
        "state": "terminated" if status.get("terminated") else str(status["state"]),
        "run": f"{_cell(running, '.0f')}/{_cell(slots, '.0f')}",
        "wait": _cell(now.value("num_requests_waiting", place), ".0f"),
        "kv": _cell(now.value("kv_cache_usage_perc", place), ".0%"),
        "in/s": _cell(interval.rate("prompt_tokens_total", place)),
        "out/s": _cell(interval.rate("generation_tokens_total", place)),
        "ans/s": _cell(interval.rate("request_success_total", place)),
        "ttft": _cell(interval.mean("time_to_first_token_seconds", place, 1000)),
        "itl": _cell(interval.mean("inter_token_latency_seconds", place, 1000)),
        "rows": _cell(interval.mean("decode_batch_size", place)),
        "hits": _cell(interval.more("prefix_cache_hits_total", place) / queries if queries else None, ".0%"),
        "died": _cell(now.value("engine_restarts_total", place), ".0f"),
    }


def _cell(value: float | None, form: str = ".1f") -> str:
    return "–" if value is None else format(value, form)
