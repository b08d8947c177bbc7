"""Starts a supervisor's process. This module imports little, so that `serve` can start the process before all
else.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from genai_server.config.environment import supervisor_environment
from genai_server.system.processes import start_module


def start_supervisor() -> "subprocess.Popen[bytes]":
    """Start a process that imports what a supervisor needs and waits for a SupervisorLaunch.

    Raises OSError on failure.
    """
    return start_module("genai_server.supervisor.process", supervisor_environment())


@contextmanager
def prepared_supervisor() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start a supervisor's process in advance. Yields a list with the process, for the argument `prepared` of
    `find_or_start`.

    If the process is still in the list at the end of the block, it is killed.
    """
    prepared: list[subprocess.Popen[bytes]] = []
    with suppress(OSError):  # `find_or_start` starts one again, and reports what is wrong
        prepared.append(start_supervisor())
    try:
        yield prepared
    finally:
        for process in prepared:
            process.kill()
            process.wait()
            for stream in filter(None, (process.stdin, process.stdout)):
                with suppress(BrokenPipeError):
                    stream.close()
