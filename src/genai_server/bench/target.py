"""What is measured."""

from dataclasses import dataclass

from genai_server.bench.client import Server
from genai_server.bench.health import HealthProbe
from genai_server.bench.processes import ServerProcesses
from genai_server.bench.prompts import Calibration


@dataclass(frozen=True)
class Target:
    """A server, how it counts tokens, its health probe if it has that endpoint, and its processes if they are here.

    Servers get the same prompts, except that one which is named again has another `copy` number, and other prompts.
    """

    server: Server
    calibration: Calibration
    health: HealthProbe | None
    copy: int = 0
    processes: ServerProcesses | None = None

    def cpu_seconds(self) -> float | None:
        """What its processes have taken of their cores up to now, if that can be known."""
        return self.processes.cpu_seconds() if self.processes is not None else None
