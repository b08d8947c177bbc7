"""Folders of one API process: their names, and which folders of others are removed."""

import os
from pathlib import Path

import psutil

from genai_server.system.runtime_folder import own_folder


def test_folder_has_the_name_of_its_process(tmp_path: Path) -> None:
    assert own_folder(tmp_path, "images") == tmp_path / f"images-{os.getpid()}"
    assert not list(tmp_path.iterdir())


def test_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    gone = psutil.Process().pid
    while psutil.pid_exists(gone):
        gone += 1
    for name in (f"a-{gone}", f"a-{os.getpid()}", f"a-{os.getppid()}", "a-x", f"b-{gone}", "metrics"):
        (tmp_path / name / "inner").mkdir(parents=True)
    own_folder(tmp_path, "a")
    left = {"a-x", f"a-{os.getppid()}", f"b-{gone}", "metrics"}
    assert {path.name for path in tmp_path.iterdir()} == left
