"""The engine process's connection to the supervisor, the process that starts engines and restarts them. It uses
standard input and output: `SupervisorLink` reads and writes messages, and `Heartbeat` sends signs of life.

The supervisor sends a description of the engine and commands; the engine sends reports and heartbeats. When heartbeats
stop, the supervisor knows that the engine hangs. When standard input ends, the supervisor has exited, and the engine
exits.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from genai_server.messages.frames import encode_frame
from genai_server.messages.launch import (
    BEAT_SECONDS,
    Beat,
    EngineLaunch,
    FromEngine,
    FromSupervisor,
    Resize,
    Unload,
    launch_decoder,
)
from genai_server.system.processes import private_standard_output
from genai_server.timing import Clock

# Seconds for `close` before the exit; the supervisor allows some more.
_CLOSING = 3.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class SupervisorLink:
    """Reads the supervisor's messages from standard input, and writes messages to standard output. The engine process
    creates one at its start.

    When standard input ends, which happens whenever the supervisor exits, the process exits. Before, the function in
    the attribute `close` is called if it is set, and the main thread has _CLOSING seconds to end the process in an
    orderly way. The supervisor's folder with the secret is removed, because a supervisor that was killed could not do
    so; it stays if the supervisor has asked only this engine to exit.
    """

    def __init__(self) -> None:
        self._output = private_standard_output()
        # Whether only this engine exits.
        self.keeps_folder = False
        # Called before the exit. It must return at once, and make the main thread close everything and exit.
        self.close: Callable[[], None] | None = None
        # Called in another thread with the new size of the memory for keys and values, in bytes.
        self.on_resize: Callable[[int], None] = lambda num_bytes: None
        self._folder = ""
        self._messages = self._read()
        self._lock = threading.Lock()
        # What the pipe did not take.
        self._unwritten = bytearray()
        if sys.platform != "win32":  # there, a write waits for a supervisor that does not read
            os.set_blocking(self._output, False)

    def launch(self) -> EngineLaunch:
        """Wait for the supervisor's first message, which describes the engine, and return it.

        From then on, a thread reads standard input. Raises msgspec.DecodeError for an invalid message, and EOFError if
        standard input ends before a message.
        """
        message = next(self._messages, None)
        if not isinstance(message, EngineLaunch):
            raise EOFError("standard input ended before the engine's description")
        self._folder = message.folder
        _exit_from_native_code()
        threading.Thread(target=self._follow, name="supervisor-watch", daemon=True).start()
        return message

    def send(self, message: FromEngine) -> None:
        """Write `message` to the supervisor without waiting. Any thread may call this.

        If the pipe is full, a heartbeat is dropped. Of any other message, the part that does not fit is written when
        the next message is sent.
        """
        with self._lock:
            if self._unwritten and isinstance(message, Beat):
                self._write()
                return
            frame = encode_frame([message])
            self._unwritten += frame
            self._write()
            if len(self._unwritten) == len(frame) and isinstance(message, Beat):  # nothing of it was written
                self._unwritten.clear()

    def _write(self) -> None:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._output, self._unwritten)]
        except BlockingIOError:
            pass  # the supervisor does not read at the moment
        except OSError:
            self._unwritten.clear()  # it has ended

    def _read(self) -> Iterator[FromSupervisor]:
        decoder = launch_decoder()
        while data := os.read(0, 1 << 16):
            yield from decoder.feed(data)

    def _follow(self) -> None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            for message in self._messages:
                if isinstance(message, Unload):
                    self.keeps_folder = True
                elif isinstance(message, Resize):
                    self.on_resize(message.num_bytes)
        if self._folder and not self.keeps_folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self.close is not None:
            self.close()
            time.sleep(_CLOSING)
        # sys.exit would wait for the main thread, which may be in native code for long.
        os._exit(0)


def _exit_from_native_code() -> None:
    """On Linux, make the kernel end this process some seconds after its parent process has ended, in case this process
    does not exit by itself.

    While native code holds the GIL in a long or hanging forward pass, no Python thread notices the end of standard
    input. The kernel therefore sends a signal when the parent dies. The signal's handler is the C library's function
    `alarm`, which takes the signal's number (16 on x86 and ARM) as a number of seconds, after which the alarm ends the
    process.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        library.signal.restype = ctypes.c_void_p
        number = signal.SIGSTKFLT  # a signal that nothing else sends
        library.signal(number, ctypes.cast(library.alarm, ctypes.c_void_p))
        library.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number))


class Heartbeat:
    """Sends heartbeats, which show the supervisor that the engine does not hang. Used by the thread of the engine's
    loop only.

    The loop calls `beat` before each forward pass, because native code may hold the GIL (Python's global lock) during
    the pass. As every heartbeat wakes the supervisor, a heartbeat with the same content as the last one is left out for
    BEAT_SECONDS. `send` passes a heartbeat on and must not block; `clock` returns the time in seconds.
    """

    def __init__(self, send: Callable[[Beat], None] = lambda beat: None, clock: Clock = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._last = Beat()
        # When a beat with the same content as the last one is sent again.
        self._next = clock()
        # The bytes of keys and values in memory.
        self.kv_bytes = 0

    def beat(self, tokens: int, requests: int, arrived: int) -> None:
        """Report that a forward pass begins which reads `tokens` tokens, of all its sequences together; 0 means that
        the engine has nothing to run.

        `requests` is the number of running and waiting requests, and `arrived` the number of all requests that have
        arrived since the engine's start.
        """
        last, now = self._last, self._clock()
        if now < self._next and tokens == last.tokens and bool(requests) == bool(last.requests):
            return
        self._last = Beat(last.number + 1, tokens, requests, arrived, self.kv_bytes)
        self._next = now + BEAT_SECONDS
        self._send(self._last)
