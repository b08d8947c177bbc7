"""Starts the process of a supervisor, which starts engines and restarts them. This module imports little, so that
`genai-server serve` can start the process before anything else: while the settings are checked, it imports what it
needs.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from genai_server.config.environment import supervisor_environment
from genai_server.system.processes import start_module


def start_supervisor() -> "subprocess.Popen[bytes]":
    """Start the process of a supervisor (which starts engines) and return it. The process imports what it needs and
    then waits on its standard input for a SupervisorLaunch, the message with its folder and settings.

    Raises OSError if the process cannot be started.
    """
    return start_module("genai_server.supervisor.process", supervisor_environment())


@contextmanager
def prepared_supervisor() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start a supervisor's process in advance, so that it is ready when it is needed. Yields a list with the process,
    which `find_or_start` gets as its argument `prepared`, and from which it takes the process. The list is empty if
    starting failed.

    If the process is still in the list at the end of the `with` block, it is killed.
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
