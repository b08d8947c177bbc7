"""How a server stops, however it was started: what signals do, and when processes end at the latest.

A server of one process (`serve`, `uvicorn`), by the number of SIGINT and SIGTERM that it receives:

1. It accepts no more work, and running requests may end within GENAI_DRAIN_TIMEOUT.
2. The running requests are cut off.
3. The process ends at once.

A worker (of `serve --workers`, `serve --reload`, `uvicorn --workers` or gunicorn) begins to drain when its parent sends
SIGTERM. It ignores SIGINT, because Ctrl-C reaches the parent as well, and further SIGTERMs, because a process manager
may send one to each process. SIGUSR1 cuts its drain short: the parent of `serve --workers` sends it after the second
signal that the parent receives, and kills its workers after the third.

Each process has itself ended by the operating system `ENDING` seconds after its drain, whatever its threads do. The
supervisor and the engines ignore these signals, and exit after the last API process.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from types import FrameType

from uvicorn.server import HANDLED_SIGNALS

from genai_server.http.middleware.request_lifetime import CANCELLED_SEND_TIMEOUT, Drain

log = logging.getLogger(__name__)

STOP_SIGNALS = tuple(signal.Signals(number) for number in HANDLED_SIGNALS)
# Seconds after the drain until connections are closed by force, such as those of slow readers and unfinished bodies.
CLOSING = 5
# Seconds after the drain until the system ends the process.
ENDING = CANCELLED_SEND_TIMEOUT + 2 * CLOSING
# What ends another process at once.
if sys.platform == "win32":
    _KILL = signal.SIGTERM
else:
    _KILL = signal.SIGKILL
# Seconds for a parent's own end after that of its workers.
_PARENT_EXIT_TIMEOUT = 5.0
# Seconds in which the traces of all threads are written before that.
_TRACES = 1.0


def end_within(seconds: float) -> None:
    """Have the operating system end this process `seconds` seconds from now, whatever its threads do. An earlier end
    that was requested before stays as it is.

    This works while another thread holds Python's lock or output is blocked. Must be called in the main thread.
    """
    if sys.platform == "win32":
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    else:
        remaining, _ = signal.getitimer(signal.ITIMER_REAL)
        if not 0 < remaining <= seconds + _TRACES:
            faulthandler.dump_traceback_later(seconds, file=2)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + _TRACES)


def end_now() -> None:
    """Kill this process at once, without cleaning up. Its engines see the end of their standard input, and exit."""
    if sys.platform == "win32":
        os.kill(os.getpid(), signal.SIGTERM)  # which no handler keeps from ending it there
    else:
        os.kill(os.getpid(), signal.SIGKILL)


class StopSignals:
    """Handles the stop signals (SIGINT, SIGTERM) of an API process during a `with` block: the first one starts the
    drain, in which running requests may end, and after it uvicorn gets the signal and stops.

    Must be entered on the event loop. In threads other than the main thread nothing is done, because signals belong to
    the main thread. `on_cut_off` is called when some requests could not be completed. `is_worker` says whether the
    process has a parent that stops it.
    """

    def __init__(self, drain: Drain, on_cut_off: Callable[[], None], *, is_worker: bool) -> None:
        self._drain = drain
        self._on_cut_off = on_cut_off
        self._is_worker = is_worker
        self._previous: dict[signal.Signals, signal._HANDLER] = {}
        self._num_orders = 0
        self._is_drained = False
        self._draining: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOP_SIGNALS:
            self._handle(number, self._on_workers_signal if self._is_worker else self._on_signal)
        if self._is_worker and sys.platform != "win32":
            self._handle(signal.SIGUSR1, lambda *_: self._hurry() if self._num_orders else None)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: signal.Signals, handler: "signal._HANDLER") -> None:
        self._previous[number] = signal.signal(number, handler)

    # Not on the loop, which may hang.

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._num_orders += 1
        if self._is_drained or self._num_orders > 2:
            end_now()
        elif self._num_orders == 1:
            self._order(number)
        else:
            self._hurry()

    def _on_workers_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGTERM and self._num_orders == 0:
            self._num_orders = 1
            self._order(number)

    def _order(self, number: int) -> None:
        end_within(self._drain.timeout + ENDING)
        self._loop.call_soon_threadsafe(self._begin, signal.Signals(number))

    def _hurry(self) -> None:
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
        self._pass_on(number)

    def _pass_on(self, number: signal.Signals) -> None:
        """Raise the signal `number` in this process again, handled by the handler that was installed before this
        class's own, such as uvicorn's.
        """
        if number in self._previous:
            own_handler = signal.signal(number, self._previous[number])
            signal.raise_signal(number)
            signal.signal(number, own_handler)


class ServerStop:
    """How the first process of a server learns that the server has to stop: the event `order` is set by a stop signal,
    or because no device could load its model. It also passes signals on to API processes that this process has started.

    `patience` is the time in seconds within which API processes end after a signal.
    """

    def __init__(self, patience: float) -> None:
        self.order = threading.Event()
        # Whether no device could load its model.
        self.no_model_loaded = False
        # Whether workers were killed because of repeated signals.
        self.has_killed = False
        self._patience = patience
        self._num_signals = 0
        self._workers: Callable[[], Collection[int | None]] | None = None

    def handle_signals(self) -> None:
        """Handle stop signals (SIGINT, SIGTERM) in this process: the first one orders the stop of the server, the
        second one ends the process at once.

        If this process also answers HTTP requests itself, StopSignals replaces these handlers meanwhile. When it has
        ended, uvicorn raises the signal that it received again.
        """
        self._workers = None
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: self._on_signal())

    def use_stop_event(self, order: threading.Event) -> None:
        """Use `order`, the event at which one of uvicorn's parent processes stops its workers, as the event that is set
        when the server must stop. If the stop was ordered already, `order` is set at once.
        """
        if self.order.is_set():
            order.set()
        self.order = order

    def handle_signals_for(self, workers: Callable[[], Collection[int | None]]) -> None:
        """Handle stop signals in this process by sending signals to its workers: SIGTERM at the first, a signal that
        cuts the drain short at the second, and a kill at the third. SIGHUP is passed on, too.

        `workers` returns the process ids of the workers; None stands for one that is not running.
        """
        self.handle_signals()
        self._workers = workers
        if sys.platform != "win32":
            # uvicorn's parent would replace all workers. One without a handler yet is ended by it, and replaced.
            signal.signal(signal.SIGHUP, lambda *_: self._signal_workers(signal.SIGHUP))

    def nothing_loaded(self) -> None:
        """Order the stop of the server, and log an error, because no device could load its model."""
        log.error("no device could load the model; the server ends")
        self.no_model_loaded = True
        self.order.set()

    def _on_signal(self) -> None:
        self._num_signals += 1
        if self._num_signals == 1:
            end_within(self._patience + _PARENT_EXIT_TIMEOUT)
            self.order.set()
            if sys.platform != "win32":  # where uvicorn's parent does it
                self._signal_workers(signal.SIGTERM)
        elif self._workers is None:
            end_now()
        elif self._num_signals == 2 and sys.platform != "win32":
            end_within(ENDING + _PARENT_EXIT_TIMEOUT)
            self._signal_workers(signal.SIGUSR1)
        else:
            self.has_killed = True
            self._signal_workers(_KILL)

    def _signal_workers(self, number: signal.Signals) -> None:
        """Send the signal `number` to all workers at once. uvicorn's parent process would not do this while it waits
        for a worker that hangs.
        """
        for pid in self._workers() if self._workers is not None else []:
            with suppress(OSError):  # it has ended
                if pid is not None:
                    os.kill(pid, number)
