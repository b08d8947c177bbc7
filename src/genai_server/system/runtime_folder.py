"""The folder in which the processes of one server find each other, and the folders of these processes within it."""

import getpass
import multiprocessing
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import psutil

from genai_server.errors import ConfigurationError

_ARBITER = "gunicorn.arbiter"


def parent_of_workers() -> int | None:
    """Return the id of the uvicorn or gunicorn process whose worker this process is; None if it is no worker."""
    if (parent := multiprocessing.parent_process()) is not None:
        return parent.pid
    return os.getppid() if _ARBITER in sys.modules else None


def open_runtime_folder(pid: int) -> Path:
    """Return the folder of the server whose first process has this id, and create it if necessary.

    Raises ConfigurationError if it cannot be created, or if another user has created it, because the name is
    predictable.
    """
    folder = Path(tempfile.gettempdir()) / f"genai-server-{getpass.getuser()}-{pid}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be made: {error.strerror}") from None
    if sys.platform != "win32" and (
        not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077
    ):
        raise ConfigurationError(f"{folder} must be a folder that belongs to this user, with mode 0700")
    return folder


def own_folder(parent: Path, name: str) -> Path:
    """Return the path of this process's own folder below `parent`, for files of the kind `name`. The caller creates it,
    with mode 0700, and removes it.

    Folders of dead processes, and of an earlier process with the same id, are removed.
    """
    for left in parent.glob(f"{name}-*"):
        id = left.name.rpartition("-")[2]
        if id.isdecimal() and (int(id) == os.getpid() or not psutil.pid_exists(int(id))):
            shutil.rmtree(left, ignore_errors=True)
    return parent / f"{name}-{os.getpid()}"
