"""Detects from an engine's heartbeats that it hangs."""

import threading
from collections.abc import Callable
from pathlib import Path

from genai_server.heartbeat import Beat, read_beat

# Seconds allowed for each token of a step, in addition to the timeout: a hundred times the time on slow machines.
SECONDS_PER_TOKEN = 0.1
# Seconds between two checks.
LOOK_EVERY = 1.0


class Watchdog:
    """Measures for how long the same heartbeat has been seen.

    The limit is the timeout plus SECONDS_PER_TOKEN for each token of the current step; a timeout of 0 sets no limit. A
    check counts for one interval at most, whatever a clock says. So a machine that slept or a stopped process group is
    not taken for a hanging engine.
    """

    def __init__(self, step_timeout: float) -> None:
        self._step_timeout = step_timeout
        self._beat = Beat(0, 0)
        self._seconds = 0.0

    def look(self, beat: Beat) -> str | None:
        """Check the newest heartbeat, LOOK_EVERY seconds after the previous check; returns what is wrong if it is too
        old.
        """
        if beat != self._beat:
            self._beat, self._seconds = beat, 0.0
            return None
        self._seconds += LOOK_EVERY
        allowed = self._step_timeout + beat.tokens * SECONDS_PER_TOKEN
        if not self._step_timeout or self._seconds < allowed:
            return None
        what = f"a step of {beat.tokens} tokens" if beat.tokens else "the engine's loop"
        return f"{what} has not ended for {allowed:g} s (GENAI_STEP_TIMEOUT={self._step_timeout:g})"


def watch(watchdog: Watchdog, file: Path, ended: threading.Event, on_hang: Callable[[str], None]) -> None:
    """Check until `ended` is set or the engine hangs; `on_hang` is called once."""
    while not ended.wait(LOOK_EVERY):
        if reason := watchdog.look(read_beat(file)):
            on_hang(reason)
            return
