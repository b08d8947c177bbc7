"""How the server ended, as its exit status says it to a process manager."""

import contextlib
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


def note_cut_off(folder: Path, pid: int) -> None:
    """This API process has cut some requests off; the one that started it reads so in the engines' folder."""
    with contextlib.suppress(OSError):  # the engines have removed it with their supervisor's death
        _note(folder, pid).touch()


def has_cut_off(folder: Path, pids: Iterable[int | None]) -> bool:
    """Whether one of these API processes has cut requests off."""
    return any(_note(folder, pid).exists() for pid in pids if pid is not None)


def _note(folder: Path, pid: int) -> Path:
    return folder / f"cut-off-{pid}"
