"""Priorities of an engine's threads."""

import os
import sys
import threading

# Next to a thread of normal priority, one with this niceness gets a tenth of a core.
_NICENESS = 10


def let_others_go_first() -> None:
    """Lower the priority of the calling thread, and of threads that it starts.

    Does nothing except on Linux, because other systems have no priorities of single threads in this form.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
