"""The state of a server at one moment, read from /healthz, /metrics and /v1/requests."""

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


class ModelDevice(NamedTuple):
    """A model on one of its devices."""

    model: str
    device: str


@dataclass(frozen=True)
class Snapshot:
    """The state of a server at one moment."""

    # Seconds of `time.monotonic`.
    at: float
    health: Mapping[str, Any]
    # Values by metric, without the prefix of all names, and place; summed over all other labels.
    samples: Mapping[tuple[str, ModelDevice], float]
    requests: list[dict[str, Any]] = field(default_factory=list)
    # Why the server does not list its requests; None if it does.
    refused: str | None = None

    def value(self, name: str, model_device: ModelDevice) -> float | None:
        """Return the value of a metric for a model on a device; None if the server does not report it."""
        return self.samples.get((name, model_device))

    def model_devices(self) -> dict[ModelDevice, Mapping[str, Any]]:
        """Return the status of each model on each of its devices."""
        models = self.health.get("models")
        if models is None:
            return {
                ModelDevice(str(status.get("model", "")), name): status
                for name, status in self.health["devices"].items()
            }
        return {
            ModelDevice(name, device): status
            for name, model in models.items()
            for device, status in model["devices"].items()
        }


@dataclass(frozen=True)
class Interval:
    """The changes between two snapshots."""

    # None for the server's start.
    before: Snapshot | None
    now: Snapshot

    def more(self, name: str, model_device: ModelDevice) -> float:
        """Return the increase of the counter `name` in the interval, for a model on a device. A counter that was reset
        counts from 0.
        """
        last = self.now.value(name, model_device) or 0.0
        first = (self.before.value(name, model_device) if self.before else None) or 0.0
        return last - first if last >= first else last

    def rate(self, name: str, model_device: ModelDevice) -> float | None:
        """Return the increase of the counter `name` per second, for a model on a device; None without an earlier
        snapshot.
        """
        if self.before is None or self.now.at <= self.before.at:
            return None
        return self.more(name, model_device) / (self.now.at - self.before.at)

    def mean(self, name: str, model_device: ModelDevice, scale: float = 1) -> float | None:
        """Return the mean of the values that the histogram `name` has counted in the interval, for a model on a device,
        times `scale`; None if there are none.
        """
        count = self.more(f"{name}_count", model_device)
        return self.more(f"{name}_sum", model_device) * scale / count if count else None


class Poller:
    """Reads the state of one server.

    An API key suffices, except for the list of requests, which needs the admin key.
    """

    def __init__(self, url: str, key: str | None) -> None:
        self._url = checked_url(url)
        self._headers = authorization(key)

    def poll(self) -> Snapshot:
        """Return the current state of the server. Raises ServerUnusable."""
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
        """Cancel a request. Its client receives the answer so far. Raises ServerUnusable."""
        self._ask(f"/v1/requests/{quote(unique_id, safe='')}/cancel", "POST")

    def _ask(self, path: str, method: str = "GET") -> bytes:
        return ask(self._url, path, self._headers, _TIMEOUT, method)

    def _object(self, path: str, field: str) -> dict[str, Any]:
        """Return the JSON object at a path of the server. Raises ServerUnusable if the response is not an object with
        `field`.
        """
        try:
            value = json.loads(self._ask(path))
        except ValueError:
            value = None
        if not isinstance(value, dict) or field not in value:
            raise ServerUnusable(f"{self._url} is not a genai-server")
        return value


def _samples(text: str) -> dict[tuple[str, ModelDevice], float]:
    """Parse metrics. Returns values by metric name (without the common prefix) and model on device.

    Values are summed over all other labels; adapters count toward their model.
    """
    values: dict[tuple[str, ModelDevice], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                model = sample.labels.get("model_name", "").partition(":")[0]
                key = (sample.name.partition(":")[2], ModelDevice(model, sample.labels.get("device", "")))
                values[key] = values.get(key, 0.0) + sample.value
    return values
