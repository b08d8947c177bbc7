"""Standard streams of an engine process, which connect it to the supervisor and end the engine with the supervisor.

Over these streams the engine also sends heartbeats, by whose absence the supervisor notices that the engine hangs.
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
from genai_server.messages.protocol import encode_frame
from genai_server.system.child_process import private_standard_output
from genai_server.timing import Clock

# Seconds for `close` before the exit; the supervisor allows some more.
_CLOSING = 3.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class SupervisorLink:
    """Takes over the standard streams of the process: reads messages of the supervisor, and writes messages to it.

    When standard input ends, which it does however the supervisor exits, the process exits. If the attribute `close` is
    set, it is called first, and the main thread has some seconds to exit in an orderly way. Then the supervisor's
    folder, which contains the secret, is removed, because a killed supervisor cannot do so. If the supervisor has only
    asked this engine to exit, the folder stays.
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
        """Wait for the launch message, with which the supervisor describes the engine.

        From then on, standard input is watched. Raises msgspec.DecodeError for an invalid message, and EOFError if
        standard input ends without one.
        """
        message = next(self._messages, None)
        if not isinstance(message, EngineLaunch):
            raise EOFError("standard input ended before the engine's description")
        self._folder = message.folder
        _exit_from_native_code()
        threading.Thread(target=self._follow, name="supervisor-watch", daemon=True).start()
        return message

    def send(self, message: FromEngine) -> None:
        """Write a message to the supervisor without waiting. Any thread may call this.

        A heartbeat that does not fit into the pipe's buffer is dropped. The part of any other message that does not fit
        is kept, and is written when the next message is sent.
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
    """On Linux, make the kernel end this process some seconds after its parent if it does not exit itself.

    While native code holds the GIL, in a long or hanging step, no Python thread sees the end of standard input. So the
    kernel sends a signal when the parent dies, whose handler is the C library's own `alarm`. It takes the signal's
    number as seconds (16 on x86 and ARM), and the alarm ends the process.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        library.signal.restype = ctypes.c_void_p
        number = signal.SIGSTKFLT  # a signal that nothing else sends
        library.signal(number, ctypes.cast(library.alarm, ctypes.c_void_p))
        library.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number))


class Heartbeat:
    """Sends heartbeats. Used by the thread of the engine's loop only.

    A heartbeat is sent before each pass, because native code may hold the GIL during the pass. As each one wakes the
    supervisor, a heartbeat with the same content as the last one is left out for BEAT_SECONDS. `send` must not block.
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
        """Report that a pass which reads `tokens` tokens of all sequences begins; 0 means that no pass begins.

        `requests` is the number of running and waiting requests, and `arrived` the number of all that have ever
        arrived.
        """
        last, now = self._last, self._clock()
        if now < self._next and tokens == last.tokens and bool(requests) == bool(last.requests):
            return
        self._last = Beat(last.number + 1, tokens, requests, arrived, self.kv_bytes)
        self._next = now + BEAT_SECONDS
        self._send(self._last)
