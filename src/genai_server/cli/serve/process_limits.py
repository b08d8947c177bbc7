"""What a process asks of its system before it serves; where a system has no such thing, nothing happens."""

import logging
import math
import sys

log = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Take as many open files as the operator's hard limit allows: each connection is one, and 1024 are few."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS allows less than it says
            log.debug("the limit of open files stays at %d", soft)


def most_files() -> float:
    """How many files may be open at once."""
    most = math.inf
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            most = soft
    return most
