"""Limits that a process asks its system for before it serves. Systems without them are left alone."""

import logging
import math
import sys

log = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Raise the limit of open files to the operator's hard limit: each connection is one, and 1024 are few."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS allows less than its hard limit
            log.debug("the limit of open files stays at %d", soft)


def max_files() -> float:
    """The most files that may be open at once."""
    most = math.inf
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            most = soft
    return most
