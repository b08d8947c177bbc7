"""The signals that stop the server, and the time by which a process ends after one, whatever its threads do."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType

from uvicorn.server import HANDLED_SIGNALS

from genai_server.http.middleware.request_lifetime import LAST_WORDS, Drain

log = logging.getLogger(__name__)

STOP_SIGNALS = tuple(signal.Signals(number) for number in HANDLED_SIGNALS)
# Seconds after the drain until connections are closed by force, such as those of slow readers and unfinished bodies.
CLOSING = 5
# Seconds after the drain until the system ends the process.
ENDING = LAST_WORDS + 2 * CLOSING
# By which the parent of several API processes stops one. A signal to the whole process group, as some process managers
# send, reaches the parent as well, and would count twice.
if sys.platform == "linux":
    PARENTS_ORDER = signal.SIGUSR1
else:
    PARENTS_ORDER = signal.SIGTERM
# Seconds in which the traces of all threads are written before that.
_TRACES = 1.0


def end_within(seconds: float) -> None:
    """Have the system end this process after `seconds`, whatever its threads do. An earlier end stays.

    This needs neither Python's lock nor an output that can be written. Must be called in the main thread.
    """
    if sys.platform == "win32":
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    else:
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        if not 0 < left <= seconds + _TRACES:
            faulthandler.dump_traceback_later(seconds, file=2)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + _TRACES)


def end_now() -> None:
    """End this process. Its engines see the end of their standard input, and leave."""
    if sys.platform == "win32":
        os.kill(os.getpid(), signal.SIGTERM)  # which no handler keeps from ending it there
    else:
        os.kill(os.getpid(), signal.SIGKILL)


class StopSignals:
    """Handles stop signals while its block runs.

    The first signal begins the drain; uvicorn gets it afterwards. A second one cuts the drain short. A third one, or
    one after the drain, ends the process at once. The process ends `ENDING` seconds after its drain at the latest.

    Must be entered on the event loop. In other threads than the main one it does nothing, since signals belong to the
    main thread. `on_cut_off` is called when some requests could not be completed. `orders` are the signals to obey;
    other stop signals are ignored.
    """

    def __init__(
        self, drain: Drain, on_cut_off: Callable[[], None], orders: Collection[signal.Signals] = STOP_SIGNALS
    ) -> None:
        self._drain = drain
        self._on_cut_off = on_cut_off
        self._orders = orders
        self._previous: dict[signal.Signals, signal._HANDLER] = {}
        self._num_signals = 0
        self._is_drained = False
        self._draining: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in {*STOP_SIGNALS, *self._orders}:
                handler = self._on_signal if number in self._orders else signal.SIG_IGN
                self._previous[number] = signal.signal(number, handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        # Not on the loop, which may hang.
        self._num_signals += 1
        if self._is_drained or self._num_signals > 2:
            end_now()
        elif self._num_signals == 1:
            end_within(self._drain.timeout + ENDING)
            self._loop.call_soon_threadsafe(self._begin, signal.Signals(number))
        else:
            end_within(ENDING)
            self._loop.call_soon_threadsafe(self._drain.hurry)

    def _begin(self, number: signal.Signals) -> None:
        self._draining = self._loop.create_task(self._drain_and_stop(number))

    async def _drain_and_stop(self, number: signal.Signals) -> None:
        log.info("signal %s: no new work; running requests may end (GENAI_DRAIN_TIMEOUT)", number.name)
        await self._drain.run()
        if self._drain.num_cut_off:
            log.warning("running requests cut off: %d", self._drain.num_cut_off)
            self._on_cut_off()
        self._is_drained = True
        self._pass_on(number if number in STOP_SIGNALS else signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        """Give the signal to its previous handler, which may be a function or the default."""
        if number in self._previous:
            ours = signal.signal(number, self._previous[number])
            signal.raise_signal(number)
            signal.signal(number, ours)
