"""The exit statuses with which commands tell a process manager or shell how they ended, and checks that decide between
them: whether requests were cut off (`note_cut_off`, `has_cut_off`) and whether the output has a reader
(`output_is_cut`).
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path

# Every running request was completed before the server stopped.
DRAINED = 0
# No device could load its model, or the API could not start.
NOTHING_LOADED = 1
# A setting or the installation is wrong.
WRONG_SETTING = 2
# The server stopped, and some running requests were cut off.
CUT_OFF = 3
# The reader of the output has gone. Shells give this status for a program that SIGPIPE has ended.
OUTPUT_CUT = 141
# EINVAL is what Windows reports.
_BROKEN_PIPE_ERRNOS = (errno.EPIPE, errno.EINVAL)


def note_cut_off(folder: Path, pid: int) -> None:
    """Record that the API process with the id `pid` has stopped before all its requests were complete, by creating an
    empty file in the server's runtime folder `folder`.

    The process that started the API process reads this with `has_cut_off`.
    """
    with contextlib.suppress(OSError):  # the engines remove the folder when their supervisor dies
        _note(folder, pid).touch()


def has_cut_off(folder: Path, pids: Iterable[int | None]) -> bool:
    """Whether any of the API processes with the ids `pids` has recorded, with `note_cut_off` in the server's runtime
    folder, that it cut off requests. None among the ids is ignored.
    """
    return any(_note(folder, pid).exists() for pid in pids if pid is not None)


def _note(folder: Path, pid: int) -> Path:
    return folder / f"cut-off-{pid}"


def output_is_cut(probe: str = "") -> bool:
    """Whether the reader of this process's standard output, such as `head`, has exited. If so, further output is
    discarded.

    To find out, the buffered output and then `probe` are written. If the output is not buffered, `probe` must not be
    empty.
    """
    try:
        print(end=probe, flush=True)
    except OSError as error:
        if error.errno not in _BROKEN_PIPE_ERRNOS:
            return False
        # Otherwise Python would try again at exit and report the failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
