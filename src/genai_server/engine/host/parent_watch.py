"""Ties an engine process to its supervisor's: it leaves when that one has gone, however it went, and not before."""

import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from genai_server.messages.launch import UNLOAD_ORDER

# Seconds for what is done before leaving; the supervisor allows some more.
_CLOSING = 3.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ParentWatch:
    """Standard input, which stays open for as long as the supervisor lives; its end ends this process at once, or after
    `close`, if somebody has given that, which has some seconds for it.

    `folder`, the supervisor's, which holds the secret, is then removed: killed, it could not do so itself. Before the
    end may come the order to leave alone, for the supervisor stays.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._let_go = threading.Event()
        self._close: Callable[[], None] | None = None

    def hold(self) -> None:
        """From now on, leave with the supervisor."""
        _end_native_code_too()
        threading.Thread(target=self._follow, name="supervisor-watch", daemon=True).start()

    def before_leaving(self, close: Callable[[], None]) -> None:
        """Order this first; it returns at once, and has the main thread close what is open and end the process."""
        self._close = close

    def let_go(self) -> None:
        """Only this engine is given up; the supervisor lives, and needs its folder."""
        self._let_go.set()

    def _follow(self) -> None:
        if sys.stdin.buffer.read() == UNLOAD_ORDER:
            self.let_go()
        if not self._let_go.is_set():
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._close is not None:
            self._close()
            time.sleep(_CLOSING)
        # Not sys.exit: the main thread may be in native code for long.
        os._exit(0)


def _end_native_code_too() -> None:
    """On Linux, have the kernel end this process some seconds after the parent if it cannot do so itself.

    While native code holds Python's lock – a long pass, one that hangs – no thread of Python sees the end of standard
    input. So the kernel sends a signal when the parent dies, and its handler is the C library's own `alarm`: called
    with the signal's number it sets an alarm in so many seconds (16 on x86 and ARM), which ends the process.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        library.signal.restype = ctypes.c_void_p
        number = signal.SIGSTKFLT  # which nothing else sends
        library.signal(number, ctypes.cast(library.alarm, ctypes.c_void_p))
        library.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number))
