"""Judges by an engine's heartbeats whether it hangs."""

import threading
from collections.abc import Callable
from pathlib import Path

from genai_server.heartbeat import Beat, read_beat

# What a token of a pass may take beyond the timeout, in seconds: a hundred times what it takes on slow machines.
SECONDS_PER_TOKEN = 0.1
# Seconds between two looks.
LOOK_EVERY = 1.0


class Watchdog:
    """Counts for how long it has seen the same heartbeat.

    It allows the timeout and SECONDS_PER_TOKEN for each token of the pass that runs; a timeout of 0 allows anything. A
    look counts for one interval at most, whatever a clock says: neither a machine that slept nor a process group that
    was stopped is an engine that hangs.
    """

    def __init__(self, step_timeout: float) -> None:
        self._step_timeout = step_timeout
        self._beat = Beat(0, 0)
        self._seconds = 0.0

    def look(self, beat: Beat) -> str | None:
        """Take the newest heartbeat, LOOK_EVERY seconds after the one before; returns what is wrong with it, if it has
        come too long ago.
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
    """Look until `ended` is set, or until it hangs, which `on_hang` is told of once."""
    while not ended.wait(LOOK_EVERY):
        if reason := watchdog.look(read_beat(file)):
            on_hang(reason)
            return
