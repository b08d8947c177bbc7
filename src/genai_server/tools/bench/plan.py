"""The plan of a benchmark: `Plan` says which scenario is measured with which lengths and how often, and
`RequestOptions` which servers are asked and how.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCENARIOS = ("sweep", "prefix", "disturbance", "fairness", "crowd", "decisions")
# Labels of the servers in reports.
LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Default repeats of a scenario in each round.
_REPEATS = {"prefix": 3, "fairness": 3}


@dataclass(frozen=True)
class Plan:
    """What a benchmark measures: the scenario, the number of rounds, the numbers of concurrent streams, and the lengths
    of prompts and answers. Lengths are in tokens, as the server counts them. The command creates it from its options.
    """

    scenario: str = "sweep"
    rounds: int = 3
    # Requests for each point, target and round of a sweep; repeats of the other scenarios. None for the default.
    requests: int | None = None
    # Sweep: numbers of streams, each measured with each of `prompt_tokens`.
    concurrency: tuple[int, ...] = (1, 4)
    prompt_tokens: tuple[int, ...] = (64,)
    output_tokens: int = 64
    # Prefix, crowd: length of the common beginning. Decisions: of the text.
    prefix_tokens: int = 1000
    # Prefix, crowd: length after the common beginning. Fairness: length of the short prompt.
    new_tokens: int = 16
    # Disturbance, fairness: length of the long prompt.
    disturbing_tokens: int = 2000
    # How many requests run at once. Disturbance, fairness: streams that others join. Crowd: requests with the common
    # beginning. Decisions: chats of each kind.
    streams: int = 4
    # Disturbance, fairness: prompt length of the running streams.
    stream_tokens: int = 64
    # Decisions: questions in one request.
    questions: int = 100
    # Sweep: a model directory for the bare library's loop.
    library: Path | None = None
    # Generates the prompts. A server that has seen the same seed has its prompts cached.
    seed: str = "0"

    def requests_at(self, streams: int) -> int:
        """Return how many requests are sent for one case of a sweep with `streams` concurrent streams: the configured
        number, or by default one for each stream, and at least four.
        """
        return self.requests or max(4, streams)

    @property
    def repeats(self) -> int:
        """How often a scenario is repeated in each round. The scenario `sweep` uses `requests_at` instead."""
        return self.requests or _REPEATS.get(self.scenario, 1)


@dataclass(frozen=True)
class RequestOptions:
    """Which servers a benchmark asks, and how: their URLs, the model and API key, further fields of each request's JSON
    body, and the path and interval in seconds of requests to the health endpoint.
    """

    urls: Sequence[str]
    model: str | None = None
    api_key: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    health_path: str = "/healthz"
    # Seconds between health probes; 0 for none.
    health_interval: float = 0.02
