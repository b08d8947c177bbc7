"""`genai-server top`: shows a running server's devices, rates and requests, updated until `q` or Ctrl-C.

In a terminal, `s` sorts the requests by another column, the arrow keys choose one, and `c` cancels it. If the server
has API keys, only the admin key shows the requests.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prompt_toolkit.input import create_input
from prompt_toolkit.keys import Keys
from rich.console import Console
from rich.live import Live

from genai_server.cli.parser import number_from
from genai_server.errors import ServerUnusable
from genai_server.tools.top_tables import Choice, Interval, Poller, Snapshot, view

_QUIT_KEYS = ("q", "Q", Keys.ControlC)
_STEPS = {Keys.Up: -1, "k": -1, Keys.Down: 1, "j": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server top` to `parser`, and set `run` as the function that executes the
    command.
    """
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8002", metavar="URL", help="(default: %(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="the server's GENAI_ADMIN_API_KEY, or an API key")
    parser.add_argument(
        "--interval", type=number_from(0.1, 3600), default=1.0, metavar="S", help="seconds between two polls"
    )
    parser.add_argument(
        "--once", action="store_true", help="poll twice, print the table and exit, as without a terminal"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server top`: show the state of a server until the user presses `q` or Ctrl-C, or once if the
    output is no terminal or `--once` is given. `arguments` are the parsed command line. Returns the exit status.

    Raises ServerUnusable if the server cannot be reached.
    """
    poller = Poller(arguments.url, arguments.api_key)
    with suppress(KeyboardInterrupt):
        if arguments.once or not sys.stdout.isatty():
            _show_once(poller, arguments.interval)
        else:
            asyncio.run(_watch(poller, poller.poll(), arguments.interval))
    return 0


def _show_once(poller: Poller, interval: float) -> None:
    before = poller.poll()
    time.sleep(interval)
    console = Console(highlight=False, markup=False)
    with console.capture() as captured:  # rich itself would end the process if the output has no reader
        console.print(view(Interval(before, poller.poll()), console.width if console.is_terminal else None))
    print(captured.get(), end="")


async def _watch(poller: Poller, before: Snapshot, interval: float) -> None:
    console, loop = Console(highlight=False, markup=False), asyncio.get_running_loop()
    choice, shown = Choice(), Interval(None, before)
    with _pressed_keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            due = loop.time() + interval
            while (remaining := due - loop.time()) > 0:
                live.update(view(shown, console.width, console.height, choice), refresh=True)
                try:
                    key = await asyncio.wait_for(keys.get(), remaining)
                except TimeoutError:
                    break
                if key in _QUIT_KEYS:
                    return
                await _act(key, choice, shown.now, poller)
            try:
                now = await asyncio.to_thread(poller.poll)
            except ServerUnusable as error:
                choice.notice = f"{error}; trying again"
                continue
            choice.notice = "" if choice.notice.endswith("trying again") else choice.notice
            shown = Interval(shown.now, now)


async def _act(key: str, choice: Choice, now: Snapshot, poller: Poller) -> None:
    """Execute what the pressed `key` stands for, which changes `choice`: `s` sorts by the next column, arrows choose a
    request, `c` asks whether to cancel the chosen request, and `y` then cancels it. `now` is the state that is shown.
    """
    was_asked, choice.notice = choice.notice.endswith("(y/n)"), ""
    if key == "s":
        choice.next_order()
    elif key in _STEPS:
        choice.move(now.requests, _STEPS[key])
    elif choice.request is not None and key == "c":
        choice.notice = f"cancel {_name_of(choice.request, now)}? (y/n)"
    elif choice.request is not None and key == "y" and was_asked:
        try:
            await asyncio.to_thread(poller.cancel, choice.request)
            choice.notice = f"{_name_of(choice.request, now)} is cancelled"
        except ServerUnusable as error:
            choice.notice = str(error)


def _name_of(unique_id: str, now: Snapshot) -> str:
    return next((str(request["id"]) for request in now.requests if request["unique_id"] == unique_id), "the request")


@contextmanager
def _pressed_keys() -> Iterator[asyncio.Queue[str]]:
    """Within a `with` block, read keys from the terminal without echo. Yields a queue that receives each pressed key;
    it stays empty if standard input is no terminal.
    """
    keys: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield keys
        return
    keyboard = create_input()

    def forward_keys() -> None:
        for press in keyboard.read_keys():
            keys.put_nowait(press.key)

    with keyboard.raw_mode(), keyboard.attach(forward_keys):
        yield keys
