"""The limit of open files that the operating system sets for this process: `raise_file_limit` raises it before the
process serves, and `max_files` returns it. Windows has no such limit.
"""

import logging
import math
import sys

log = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: each connection needs a file, and the usual 1024 are few."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS allows less than its hard limit
            log.debug("the limit of open files stays at %d", soft)


def max_files() -> float:
    """Return the maximum number of open files; infinity if there is no limit."""
    limit = math.inf
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            limit = soft
    return limit
