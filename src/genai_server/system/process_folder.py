"""Folders for the files of one API process, within the folder that all processes of a server share."""

import os
import shutil
from pathlib import Path

import psutil


def own_folder(parent: Path, name: str) -> Path:
    """Return the folder of this process for files of a kind. The caller creates it, with mode 0700, and removes it.

    Folders of dead processes, and of an earlier process with the same id, are removed.
    """
    for left in parent.glob(f"{name}-*"):
        id = left.name.rpartition("-")[2]
        if id.isdecimal() and (int(id) == os.getpid() or not psutil.pid_exists(int(id))):
            shutil.rmtree(left, ignore_errors=True)
    return parent / f"{name}-{os.getpid()}"
