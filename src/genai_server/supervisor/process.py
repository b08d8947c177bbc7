"""The main program of the supervisor, the process that starts a server's engines and that all API processes of the
server share.

It is started by `genai-server serve`, or by the first worker of uvicorn or gunicorn, with `SupervisorLaunch` on
standard input. It writes a line to standard output when it listens, and ends after the last API process.
"""

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil
from filelock import FileLock, Timeout

from genai_server.config.settings import Settings
from genai_server.logs import configure_logging
from genai_server.messages.supervisor_protocol import LOCK, SupervisorLaunch
from genai_server.supervisor.supervisor import Supervisor
from genai_server.system.processes import ignore_group_signals, private_standard_output

log = logging.getLogger(__name__)
# Seconds between two looks at the number of API processes.
_CHECK_INTERVAL = 0.05
# Seconds without an API process after which a supervisor leaves: while the server's first process lives, which replaces
# workers that die, and after that.
_PATIENCE, _LINGER = 60.0, 1.0


def main() -> None:
    """Run the supervisor process: read the settings from standard input, start the engines, and end the process when no
    API process is left.
    """
    ignore_group_signals()
    output = private_standard_output()
    content = sys.stdin.buffer.read()
    if not content:  # `serve` has refused its settings
        return
    launch = msgspec.json.decode(content, type=SupervisorLaunch)
    settings = Settings.model_validate(launch.settings)
    configure_logging(settings.log_level, settings.log_format)
    folder = Path(launch.folder)
    supervisor = Supervisor(settings, found_in=folder)
    supervisor.start()
    with contextlib.suppress(OSError):  # the process that waits for it may have ended
        os.write(output, b"listening\n")
    os.close(output)
    _until_unused(supervisor, folder, launch.first)
    os._exit(0)


def _until_unused(supervisor: Supervisor, folder: Path, first: int) -> None:
    """Wait until no API process is connected and none is expected; then stop the supervisor and remove `folder`, the
    server's runtime folder.

    `first` is the process id of the server's first process. While that runs, a new API process is expected for longer.
    """
    timer = threading.Event()
    try:
        parent = psutil.Process(first)
    except psutil.NoSuchProcess:
        parent = None
    last_used = time.monotonic()
    while True:
        timer.wait(_CHECK_INTERVAL)
        now = time.monotonic()
        if supervisor.num_api_processes:
            last_used = now
            continue
        patience = _PATIENCE if parent is not None and parent.is_running() else _LINGER
        if supervisor.is_leaving or now - last_used >= patience:
            try:
                with FileLock(folder / LOCK, timeout=0, mode=0o600):
                    if not supervisor.num_api_processes:
                        supervisor.stop()
                        shutil.rmtree(folder, ignore_errors=True)
                        return
            except Timeout:  # an API process is about to connect
                last_used = now
            except OSError:  # the folder has gone, so that none can
                supervisor.stop()
                return


if __name__ == "__main__":
    main()
