"""The signals that stop an API process: the drain comes first, then uvicorn gets the signal."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType

from uvicorn.server import HANDLED_SIGNALS as STOP_SIGNALS

from genai_server.api.middleware.drain import Drain

log = logging.getLogger(__name__)


class StopSignals:
    """Handles stop signals while its block runs.

    The first signal begins the drain; uvicorn gets it afterwards. A second one cuts the drain short. Any later one goes
    to uvicorn.

    Must be entered on the event loop. In other threads than the main one it does nothing, since signals belong to the
    main thread. `on_cut_off` is called when some requests could not be completed.
    """

    def __init__(self, drain: Drain, on_cut_off: Callable[[], None], ignored: Collection[signal.Signals] = ()) -> None:
        self._drain = drain
        self._on_cut_off = on_cut_off
        self._ignored = ignored
        self._previous: dict[signal.Signals, signal._HANDLER] = {}
        self._draining: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                handler = signal.SIG_IGN if number in self._ignored else self._on_signal
                self._previous[signal.Signals(number)] = signal.signal(number, handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._obey, signal.Signals(number))

    def _obey(self, number: signal.Signals) -> None:
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain_and_stop(number))
        elif not self._draining.done():
            self._drain.hurry()
        else:
            self._pass_on(number)

    async def _drain_and_stop(self, number: signal.Signals) -> None:
        log.info("signal %s: no new work; running requests may end (GENAI_DRAIN_TIMEOUT)", number.name)
        await self._drain.run()
        if self._drain.num_cut_off:
            log.warning("%d running requests were cut off", self._drain.num_cut_off)
            self._on_cut_off()
        self._pass_on(number)

    def _pass_on(self, number: signal.Signals) -> None:
        """Give the signal to its previous handler, which may be a function or the default."""
        if number in self._previous:
            signal.signal(number, self._previous[number])
            signal.raise_signal(number)
            signal.signal(number, self._on_signal)
