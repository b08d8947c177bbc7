"""Notes which of the package's files run code while a request is answered.

Python imports this module at the start of each process whose PYTHONPATH has its folder. The processes of
`tests/test_request_walk.py` do: they note files while the file WALK_FOLDER/on exists, and then write WALK_FOLDER/PID.
Until then, WALK_FOLDER/begun-PID says that they note.
"""

import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

# Threads that a request passes; the others watch engines and processes.
_THREADS = ("MainThread", "asyncio_", "connections", "choice-", "guidance")
_PACKAGE = f"{os.sep}genai_server{os.sep}"


class Recorder:
    """Collects the files of called functions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_on = False
        self._found: set[str] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """A profile function (sys.setprofile)."""
        code = frame.f_code
        is_called = self._is_on and event == "call" and code.co_name != "<module>" and _PACKAGE in code.co_filename
        if is_called and threading.current_thread().name.startswith(_THREADS):
            self._found.add(code.co_filename)

    def follow(self) -> None:
        """Begin and end with the file `on`, for good."""
        while True:
            was_on, self._is_on = self._is_on, (self._folder / "on").exists()
            begun = self._folder / f"begun-{os.getpid()}"
            if self._is_on and not was_on:
                begun.touch()
            elif was_on and not self._is_on:
                begun.write_text("\n".join(sorted(self._found)), encoding="utf-8")
                begun.rename(self._folder / f"{os.getpid()}")
            time.sleep(0.02)


if "WALK_FOLDER" in os.environ:
    recorder = Recorder(Path(os.environ["WALK_FOLDER"]))
    threading.setprofile(recorder.note)
    sys.setprofile(recorder.note)
    threading.Thread(target=recorder.follow, name="walk", daemon=True).start()
