"""Ties the life of an engine process to its supervisor's: it exits when the supervisor exits, however that happens."""

import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from genai_server.messages.launch import RESIZE_ORDER, UNLOAD_ORDER

# Seconds for `close` before the exit; the supervisor allows some more.
_CLOSING = 3.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ParentWatch:
    """Watches standard input, which stays open while the supervisor lives, and ends this process with it.

    `close`, if given, is called first and has some seconds. Then the supervisor's `folder`, which contains the secret,
    is removed, because a killed supervisor cannot do so. If the engine was asked to exit alone, the folder stays.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Whether only this engine exits: the supervisor continues and needs its folder.
        self.keeps_folder = False
        # Called before the exit. It must return at once, and make the main thread close everything and exit.
        self.close: Callable[[], None] | None = None
        # Called in another thread with the new size of the memory for keys and values.
        self.on_resize: Callable[[int], None] = lambda num_bytes: None

    def start(self) -> None:
        """Start the watch."""
        _exit_from_native_code()
        threading.Thread(target=self._follow, name="supervisor-watch", daemon=True).start()

    def _follow(self) -> None:
        for line in sys.stdin.buffer:
            if line == UNLOAD_ORDER:
                self.keeps_folder = True
            elif line.startswith(RESIZE_ORDER):
                self.on_resize(int(line.removeprefix(RESIZE_ORDER)))
        if not self.keeps_folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self.close is not None:
            self.close()
            time.sleep(_CLOSING)
        # sys.exit would wait for the main thread, which may be in native code for long.
        os._exit(0)


def _exit_from_native_code() -> None:
    """On Linux, make the kernel end this process some seconds after its parent if it does not exit itself.

    While native code holds Python's lock, in a long or hanging step, no Python thread sees the end of standard input.
    So the kernel sends a signal when the parent dies, whose handler is the C library's own `alarm`. It takes the
    signal's number as seconds (16 on x86 and ARM), and the alarm ends the process.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        library.signal.restype = ctypes.c_void_p
        number = signal.SIGSTKFLT  # a signal that nothing else sends
        library.signal(number, ctypes.cast(library.alarm, ctypes.c_void_p))
        library.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number))
