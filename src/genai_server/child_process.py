"""The first steps of a child process of this server, so that only its parent controls it."""

import os
import signal
from typing import BinaryIO

# Signals that a terminal or an operator sends to whole process groups.
_GROUP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


def ignore_group_signals() -> None:
    """Ignore signals to the whole process group: the parent handles them, and its end ends this process."""
    for name in _GROUP_SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def private_standard_output() -> BinaryIO:
    """Reserve standard output for messages to the parent: native libraries print to it."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output
