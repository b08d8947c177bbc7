"""The folder in which the processes of one server find each other, and which server a process belongs to."""

import getpass
import multiprocessing
import os
import stat
import sys
import tempfile
from pathlib import Path

from genai_server.errors import ConfigurationError

_ARBITER = "gunicorn.arbiter"


def parent_of_workers() -> int | None:
    """The process id of uvicorn's or gunicorn's process whose worker this process is; None if it is no worker."""
    if (parent := multiprocessing.parent_process()) is not None:
        return parent.pid
    return os.getppid() if _ARBITER in sys.modules else None


def open_runtime_folder(pid: int) -> Path:
    """The folder of the server whose first process has this id; makes it. Raises ConfigurationError.

    The name can be foreseen, so another user may have made it: then it is not used.
    """
    folder = Path(tempfile.gettempdir()) / f"genai-server-{getpass.getuser()}-{pid}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be made: {error.strerror}") from None
    if sys.platform != "win32" and (
        not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise ConfigurationError(f"{folder} must be a folder that belongs to this user, with mode 0700")
    return folder
