"""Steps of an engine loop that is run by hand."""

import time

from genai_server.engine.loop import EngineLoop
from genai_server.engine.scheduling.scheduler import Scheduler


def step_or_wait(loop: EngineLoop, scheduler: Scheduler) -> None:
    """Run a step. During a compilation there may be nothing to do, and a step would block."""
    if loop.inbox.empty() and scheduler.is_idle:
        time.sleep(0.001)
    else:
        loop.run_one_step()
