"""`genai-server top`: a table of a running server's devices, rates and requests, renewed until Ctrl-C.

Where the server has API keys, only the admin key shows the requests.
"""

import argparse
import importlib.util
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from genai_server.cli.top.snapshot import Interval, Poller, ServerUnreachable, Snapshot
from genai_server.errors import ConfigurationError
from genai_server.installation import this_installation

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_REQUESTS = 20


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The subcommand and its options."""
    parser = subparsers.add_parser("top", help="watch a running server", description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8002", metavar="URL", help="(default: %(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="the server's GENAI_ADMIN_API_KEY, or an API key")
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two polls")
    parser.add_argument("--once", action="store_true", help="poll twice, print the table and end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Watch until Ctrl-C; status 1 if the server cannot be reached. Raises ConfigurationError."""
    if importlib.util.find_spec("rich") is None:
        raise ConfigurationError(
            f"genai-server top needs rich; install it: {this_installation().extra_command('bench')}"
        )
    poller = Poller(arguments.url, arguments.api_key)
    try:
        with suppress(KeyboardInterrupt):
            _watch(poller, poller.poll(), arguments.interval, once=arguments.once)
    except ServerUnreachable as error:
        print(f"genai-server top: {error}", file=sys.stderr)
        return 1
    return 0


def _watch(poller: Poller, before: Snapshot, interval: float, *, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    if once:
        time.sleep(interval)
        console = Console()
        with console.capture() as captured:  # rich itself would end the process when the output has no reader
            console.print(view(Interval(before, poller.poll())))
        print(captured.get(), end="")
        return
    with Live(view(Interval(None, before)), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            try:
                now = poller.poll()
            except ServerUnreachable as error:
                live.update(f"{error}; trying again", refresh=True)
                continue
            live.update(view(Interval(before, now)), refresh=True)
            before = now


def view(interval: Interval) -> "RenderableType":
    """The tables of an interval."""
    from rich.console import Group
    from rich.table import Table

    devices = Table(box=None, title=f"genai-server {interval.now.health.get('version', '')}", title_justify="left")
    for number, column in enumerate(_COLUMNS):
        devices.add_column(column, justify="right" if number > 1 else "left")
    for device, status in interval.now.health["devices"].items():
        devices.add_row(*_device(interval, device, status))
    if interval.now.refused is not None:
        return Group(devices, _LEGEND, f"requests are not shown: {interval.now.refused}")
    count = len(interval.now.requests)
    requests = Table(box=None, title=f"{count} request{'s' * (count != 1)}", title_justify="left")
    for number, column in enumerate(("request", "device", "phase", "age s", "prompt", "cached", "output")):
        requests.add_column(column, justify="right" if number > 2 else "left")
    for each in interval.now.requests[:_MOST_REQUESTS]:
        tokens = (str(each[f"{kind}_tokens"]) for kind in ("prompt", "cached", "output"))
        requests.add_row(each["id"], each["device"], each["phase"], f"{each['age']:.1f}", *tokens)
    more = f"and {count - _MOST_REQUESTS} more" if count > _MOST_REQUESTS else ""
    return Group(devices, _LEGEND, "", requests, more)


_COLUMNS = ("device", "state", "run", "wait", "kv", "in/s", "out/s", "ans/s", "ttft", "itl", "rows", "hits", "died")
_LEGEND = "a second: tokens in, out, answers; ms: to the first token, between tokens; hits: of prompts, cached"


def _device(interval: Interval, device: str, status: dict[str, object]) -> list[str]:
    now = interval.now
    queries = interval.more("prefix_cache_queries_total", device)
    state = "terminated" if status.get("terminated") else str(status["state"])
    return [
        device,
        state,
        f"{_whole(now.value('num_requests_running', device))}/{_whole(now.value('num_slots', device))}",
        _whole(now.value("num_requests_waiting", device)),
        _share(now.value("kv_cache_usage_perc", device)),
        _number(interval.rate("prompt_tokens_total", device)),
        _number(interval.rate("generation_tokens_total", device)),
        _number(interval.rate("request_success_total", device)),
        _milliseconds(interval.mean("time_to_first_token_seconds", device)),
        _milliseconds(interval.mean("inter_token_latency_seconds", device)),
        _number(interval.mean("decode_batch_size", device)),
        _share(interval.more("prefix_cache_hits_total", device) / queries if queries else None),
        _whole(now.value("engine_restarts_total", device)),
    ]


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value * 1000:.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 3600")
    return number
