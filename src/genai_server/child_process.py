"""What a process does first that another one of this server has started: it belongs to that one alone."""

import os
import signal
from typing import BinaryIO

# What a terminal or an operator sends to whole process groups.
_GROUP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


def ignore_group_signals() -> None:
    """A signal to the whole process group is the parent's to handle; to this process the parent's end means
    something.
    """
    for name in _GROUP_SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def private_standard_output() -> BinaryIO:
    """Keep standard output for the parent alone: native libraries print to it what they like."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output
