"""Folders for files of one API process, within the folder that all processes of a server share."""

import os
import shutil
from pathlib import Path

import psutil


def own_folder(parent: Path, name: str) -> Path:
    """Where this process keeps its files of a kind. The caller creates the folder, with mode 0700, and removes it.

    Removes the folders of processes that have died, and what an earlier one with this process's id has left.
    """
    for left in parent.glob(f"{name}-*"):
        id = left.name.rpartition("-")[2]
        if id.isdecimal() and (int(id) == os.getpid() or not psutil.pid_exists(int(id))):
            shutil.rmtree(left, ignore_errors=True)
    return parent / f"{name}-{os.getpid()}"
