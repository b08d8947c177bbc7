"""A server's state at one moment, polled from /healthz, /metrics and /v1/requests."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families

from genai_server.errors import ServerUnusable
from genai_server.tools.server_answers import ask, authorization, checked_url

_TIMEOUT = 5.0


class Place(NamedTuple):
    """A model on a device."""

    model: str
    device: str


@dataclass(frozen=True)
class Snapshot:
    """The state of a server at one moment."""

    # Seconds of `time.monotonic`.
    at: float
    health: Mapping[str, Any]
    # Values by metric, without the prefix of all names, and place; summed over all other labels.
    samples: Mapping[tuple[str, Place], float]
    requests: list[dict[str, Any]] = field(default_factory=list)
    # Why the server does not list its requests; None if it does.
    refused: str | None = None

    def value(self, name: str, place: Place) -> float | None:
        """The value of a metric at a place; None if the server does not report it."""
        return self.samples.get((name, place))

    def places(self) -> dict[Place, Mapping[str, Any]]:
        """The status of each model on each of its devices."""
        models = self.health.get("models")
        if models is None:
            return {
                Place(str(status.get("model", "")), name): status for name, status in self.health["devices"].items()
            }
        return {
            Place(name, device): status for name, model in models.items() for device, status in model["devices"].items()
        }


@dataclass(frozen=True)
class Interval:
    """What happened between two snapshots."""

    # None for the server's start.
    before: Snapshot | None
    now: Snapshot

    def more(self, name: str, place: Place) -> float:
        """The increase of a counter. A counter that has restarted counts from 0."""
        last = self.now.value(name, place) or 0.0
        first = (self.before.value(name, place) if self.before else None) or 0.0
        return last - first if last >= first else last

    def rate(self, name: str, place: Place) -> float | None:
        """The increase of a counter per second; None without an earlier snapshot."""
        if self.before is None or self.now.at <= self.before.at:
            return None
        return self.more(name, place) / (self.now.at - self.before.at)

    def mean(self, name: str, place: Place, scale: float = 1) -> float | None:
        """The mean of a histogram's new observations times `scale`; None without any."""
        count = self.more(f"{name}_count", place)
        return self.more(f"{name}_sum", place) * scale / count if count else None


class Poller:
    """Polls one server. An API key is sufficient, except for the list of requests, which needs the admin key."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = checked_url(url)
        self._headers = authorization(key)

    def poll(self) -> Snapshot:
        """Take a snapshot. Raises ServerUnusable."""
        health = self._object("/healthz", "devices")
        try:
            samples = _samples(self._ask("/metrics").decode())
        except ValueError:
            raise ServerUnusable(f"{self._url}/metrics has no metrics") from None
        try:
            requests: list[dict[str, Any]] = self._object("/v1/requests", "data")["data"]
            refused = None
        except ServerUnusable as error:
            requests, refused = [], str(error)
        return Snapshot(time.monotonic(), health, samples, requests, refused)

    def cancel(self, unique_id: str) -> None:
        """End a request; its client gets the answer so far. Raises ServerUnusable."""
        self._ask(f"/v1/requests/{quote(unique_id, safe='')}/cancel", "POST")

    def _ask(self, path: str, method: str = "GET") -> bytes:
        return ask(self._url, path, self._headers, _TIMEOUT, method)

    def _object(self, path: str, field: str) -> dict[str, Any]:
        """The JSON object at a path, which has this field."""
        try:
            found = json.loads(self._ask(path))
        except ValueError:
            found = None
        if not isinstance(found, dict) or field not in found:
            raise ServerUnusable(f"{self._url} is not a genai-server")
        return found


def _samples(text: str) -> dict[tuple[str, Place], float]:
    """Values by metric, without the prefix of all names, and place; summed over all else, a model's adapters too."""
    found: dict[tuple[str, Place], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                model = sample.labels.get("model_name", "").partition(":")[0]
                key = (sample.name.partition(":")[2], Place(model, sample.labels.get("device", "")))
                found[key] = found.get(key, 0.0) + sample.value
    return found
