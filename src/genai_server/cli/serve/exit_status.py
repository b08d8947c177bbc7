"""How a command ended, as its exit status says it to a process manager or a shell."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path

# All that ran when the server was told to stop has run to its end.
DRAINED = 0
# No device could load its model, or the API could not start.
NOTHING_LOADED = 1
# A setting or the installation is wrong.
WRONG_SETTING = 2
# The server was told to stop, and some of what ran was cut off.
CUT_OFF = 3
# What reads the output has gone: the status that shells give for a program that SIGPIPE has ended.
OUTPUT_CUT = 141
# The second is Windows's.
_READER_GONE = (errno.EPIPE, errno.EINVAL)


def note_cut_off(folder: Path, pid: int) -> None:
    """This API process has cut some requests off; the one that started it reads so in the engines' folder."""
    with contextlib.suppress(OSError):  # the engines have removed it with their supervisor's death
        _note(folder, pid).touch()


def has_cut_off(folder: Path, pids: Iterable[int | None]) -> bool:
    """Whether one of these API processes has cut requests off."""
    return any(_note(folder, pid).exists() for pid in pids if pid is not None)


def _note(folder: Path, pid: int) -> Path:
    return folder / f"cut-off-{pid}"


def output_is_cut(probe: str = "") -> bool:
    """Whether what reads the output has gone; if so, further output is discarded.

    What is buffered is written, and the probe after it: without buffers nothing is left that could show the cut.
    """
    try:
        print(end=probe, flush=True)
    except OSError as error:
        if error.errno not in _READER_GONE:
            return False
        # Else Python would try once more when it ends, and say that this failed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
