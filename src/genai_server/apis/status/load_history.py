"""The endpoint /metrics/history: the load of each device in the last five minutes, for the charts of the web page.

Longer histories are left to Prometheus.
"""

import asyncio
import time
from collections import deque
from typing import Any, NoReturn

from fastapi import APIRouter, Request

from genai_server.apis.status.engine_metrics import EngineMetrics, Labels
from genai_server.http.telemetry.recent_requests import RecentRequests

PATH = "/metrics/history"
# Seconds between two samples, and how many are kept.
INTERVAL = 2.0
MAX_SAMPLES = 150

router = APIRouter(tags=["status"])


class LoadHistory:
    """Keeps samples of the engines' load for the last five minutes. The samples are taken from the engines' latest
    reports every two seconds, without waiting for an engine.
    """

    def __init__(self, metrics: EngineMetrics, requests: RecentRequests) -> None:
        self._metrics = metrics
        self._requests = requests
        self._samples: dict[Labels, deque[dict[str, Any]]] = {}

    async def follow(self) -> NoReturn:
        """Take samples until cancelled."""
        while True:
            self._sample(time.time())
            await asyncio.sleep(INTERVAL)

    def _sample(self, now: float) -> None:
        """Add a sample for each device, and remove devices without recent samples. `now` is in seconds since 1970."""
        for labels, load in self._metrics.loads().items():
            number, total = self._requests.first_tokens.get(labels, (0, 0.0))
            sample = {"time": round(now, 3), **load, "first_tokens": number, "first_token_seconds": round(total, 4)}
            self._samples.setdefault(labels, deque(maxlen=MAX_SAMPLES)).append(sample)
        for labels, samples in list(self._samples.items()):
            if samples[-1]["time"] < now - INTERVAL * MAX_SAMPLES:
                del self._samples[labels]

    def since(self, since: float) -> list[dict[str, Any]]:
        """The samples of each device after this time, in seconds since 1970."""
        return [
            {"model": model, "device": device, "samples": [each for each in samples if each["time"] > since]}
            for (model, device), samples in self._samples.items()
        ]


@router.get(PATH)
async def load_history(request: Request, since: float = 0.0) -> dict[str, Any]:
    """Get samples of each device's load and counters, taken every two seconds and kept for five minutes.

    Only samples after `since`, in seconds since 1970, are returned. Counters begin when the engine starts. `token_gaps`
    has the number of gaps between two tokens up to each of `gap_bounds` (in seconds), and above the last one. Times to
    the first token are those that one API process has seen.
    """
    return {"object": "list", "interval": INTERVAL, "data": request.app.state.history.since(since)}
