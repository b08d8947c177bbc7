"""What is to be measured."""

from dataclasses import dataclass
from pathlib import Path

SCENARIOS = ("sweep", "prefix", "disturbance")
# Repeats of a round's scenario where the user does not say.
_REPEATS = {"prefix": 3, "disturbance": 1}


@dataclass(frozen=True)
class Plan:
    """Lengths are in tokens as the server counts them.

    A sweep measures each of `prompt_tokens` with each of `concurrency`; the other scenarios have lengths of their own.
    `requests` is the number for each point, target and round, in the other scenarios of repeats; None takes the
    scenario's default. `seed` makes the prompts: a server that has seen them has them in its cache.
    """

    scenario: str = "sweep"
    rounds: int = 3
    requests: int | None = None
    concurrency: tuple[int, ...] = (1, 4)
    prompt_tokens: tuple[int, ...] = (64,)
    output_tokens: int = 64
    prefix_tokens: int = 1000
    new_tokens: int = 16
    disturbing_tokens: int = 2000
    streams: int = 4
    stream_tokens: int = 64
    library: Path | None = None
    seed: str = "0"

    def requests_at(self, streams: int) -> int:
        """Requests of one point of a sweep: by default one wave, and at least four."""
        return self.requests or max(4, streams)

    @property
    def repeats(self) -> int:
        """How often another scenario is measured in a round."""
        return self.requests or _REPEATS.get(self.scenario, 1)
