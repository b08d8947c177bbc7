"""A target of a benchmark."""

from dataclasses import dataclass

from genai_server.tools.bench.bench_client import Server
from genai_server.tools.bench.bench_prompts import Calibration
from genai_server.tools.bench.health_polls import HealthProbe
from genai_server.tools.bench.process_times import ServerProcesses


@dataclass(frozen=True)
class Target:
    """A server to be measured.

    All servers get the same prompts. A server that is named again has another `copy` number and other prompts.
    """

    server: Server
    calibration: Calibration
    # None if the server has no health endpoint.
    health: HealthProbe | None
    copy: int = 0
    # None if the server runs on another machine.
    processes: ServerProcesses | None = None

    def cpu_seconds(self) -> float | None:
        """The total CPU time of its processes up to now, if it is known."""
        return self.processes.cpu_seconds() if self.processes is not None else None
