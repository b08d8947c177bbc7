"""How many replicas a deployment has: a fixed number, or as many as its requests need."""

import re
from typing import Any

from genai_server.errors import ConfigurationError


def max_replicas(replicas: str) -> int:
    """The largest number that is meant by `2`, or by `1:4`. Raises ConfigurationError."""
    return _bounds(replicas)[1]


def scaling(replicas: str, target: int) -> dict[str, Any]:
    """Options of a deployment. It scales between two numbers for `target` running requests of each replica."""
    least, most = _bounds(replicas)
    if ":" not in replicas:
        return {"num_replicas": most}
    return {"autoscaling_config": {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": target}}


def _bounds(replicas: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,3})(?::([1-9]\d{0,3}))?", replicas)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if least > most:
        raise ConfigurationError(f"replicas={replicas}: expected a number such as 2, or least and most such as 1:4")
    return least, most
