"""A server as it looks from outside at one moment, through /healthz, /metrics and /v1/requests."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_PATIENCE = 5.0
_PREFIX = "genai:"


class ServerUnreachable(Exception):
    """The server does not answer, or not as this one does; the message says what."""


@dataclass(frozen=True)
class Snapshot:
    """What was seen at a time in seconds; `refused` says why the requests are not told, if they are not."""

    at: float
    health: Mapping[str, Any]
    samples: Mapping[tuple[str, str], float]
    requests: list[dict[str, Any]] = field(default_factory=list)
    refused: str | None = None

    def value(self, name: str, device: str) -> float | None:
        """The samples of a device under this name together, None if there is none."""
        return self.samples.get((_PREFIX + name, device))


@dataclass(frozen=True)
class Interval:
    """What happened between two moments; without an earlier one, since the server's start."""

    before: Snapshot | None
    now: Snapshot

    def more(self, name: str, device: str) -> float:
        """By how much a counter has grown; what has begun anew counts from there."""
        last = self.now.value(name, device) or 0.0
        first = (self.before.value(name, device) if self.before else None) or 0.0
        return last - first if last >= first else last

    def rate(self, name: str, device: str) -> float | None:
        """The same for each second; not known without an earlier moment."""
        if self.before is None or self.now.at <= self.before.at:
            return None
        return self.more(name, device) / (self.now.at - self.before.at)

    def mean(self, name: str, device: str) -> float | None:
        """The mean of what a histogram has seen meanwhile, if it has seen anything."""
        count = self.more(f"{name}_count", device)
        return self.more(f"{name}_sum", device) / count if count else None


class Poller:
    """Looks at one server. `key` opens it, the admin key also what runs there."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def poll(self) -> Snapshot:
        """The server now. Raises ServerUnreachable."""
        health = _object(self._get("/healthz"), self._url)
        samples = _samples(self._get("/metrics"))
        try:
            requests: list[dict[str, Any]] = _object(self._get("/v1/requests"), self._url)["data"]
            refused = None
        except ServerUnreachable as error:
            requests, refused = [], str(error)
        return Snapshot(time.monotonic(), health, samples, requests, refused)

    def _get(self, path: str) -> str:
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as response:
                text: str = response.read().decode()
                return text
        except urllib.error.HTTPError as error:
            with error:
                raise ServerUnreachable(f"{path}: {_reason(error)}") from None
        except (OSError, ValueError) as error:
            raise ServerUnreachable(f"{self._url}: {getattr(error, 'reason', error)}") from None


def _samples(text: str) -> dict[tuple[str, str], float]:
    """By name and device; what differs in other labels is added up."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                key = (sample.name, sample.labels.get("device", ""))
                found[key] = found.get(key, 0.0) + sample.value
    return found


def _object(text: str, url: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ServerUnreachable(f"{url} is no genai-server")
    return found


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{error.code} {error.reason}"
