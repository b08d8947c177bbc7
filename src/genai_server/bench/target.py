"""What is measured."""

from dataclasses import dataclass

from genai_server.bench.client import Server
from genai_server.bench.health import HealthProbe
from genai_server.bench.prompts import Calibration


@dataclass(frozen=True)
class Target:
    """A server, how it counts tokens, and its health probe if it has that endpoint.

    Servers get the same prompts, except that one which is named again has another `copy` number, and other prompts.
    """

    server: Server
    calibration: Calibration
    health: HealthProbe | None
    copy: int = 0
