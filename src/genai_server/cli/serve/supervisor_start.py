"""The start of a supervisor's process. It imports little, so that `serve` can do it before everything else."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from genai_server.config.environment import supervisor_environment
from genai_server.system.child_process import start_module


def start_supervisor() -> "subprocess.Popen[bytes]":
    """A process that imports what a supervisor needs, and waits for a SupervisorLaunch. Raises OSError."""
    return start_module("genai_server.supervisor.process", supervisor_environment())


@contextmanager
def prepared_supervisor() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Such a process in a list, which `find_or_start` takes it from; it is killed if the block leaves it there."""
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
