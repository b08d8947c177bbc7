"""Requests and tokens by day, API key and model, in a file."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import StoreUnavailable
from genai_server.http.telemetry.key_usage import MAX_DAYS, Counts, KeyUsage, UsageKey
from genai_server.http.telemetry.request_record import RequestRecord, Usage
from genai_server.timing import Arrival, Timings
from tests.hand_clock import HandClock

DAY = date(2026, 11, 28)
pytestmark = pytest.mark.anyio


@dataclass
class _Route:
    path: str = "/v1/chat"


@dataclass
class _Answer:
    usage: Usage = field(default_factory=lambda: Usage(prompt=7, completion=3, cached=4))
    outcome: str = "stop"

    def timings(self) -> Timings:
        raise NotImplementedError

    def close(self) -> None:
        pass


def _request(key: str, *, day: date = DAY, num_answers: int = 1, model: str = "m", **fields: Any) -> RequestRecord:
    """A request that ends at noon of a day."""
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()
    scope: dict[str, Any] = {"method": "POST", "type": "http", "route": _Route()}
    record = RequestRecord(scope, "a", "b", model, Arrival(HandClock()), noon, **fields)
    record.key_name, record.answers = key, [_Answer() for _ in range(num_answers)]
    return record


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[KeyUsage]:
    usage = KeyUsage()
    usage.open(path)
    try:
        yield usage
    finally:
        await usage.close()


async def test_requests_are_added_up_by_day_key_and_model_without_reads_and_those_of_operators(tmp_path: Path) -> None:
    yesterday = DAY - timedelta(days=1)
    async with _opened(tmp_path / "usage") as usage:
        usage.observe(_request("alice"))
        usage.observe(_request("alice", num_answers=2))
        usage.observe(_request("alice", model="m:law"))
        usage.observe(_request("alice", num_answers=0, status=429))
        usage.observe(_request("bob", day=yesterday))
        usage.observe(_request(""))
        reads, operators = ("GET", _Route("/v1/models")), ("POST", _Route("/v1/admin/usage"))
        for method, route in (reads, operators, ("POST", None)):
            scope = {"method": method, **({"route": route} if route else {})}
            usage.observe(RequestRecord(scope, "a", "b", "m", Arrival(HandClock()), 0.0, status=404))
        expected = [
            (UsageKey("2026-11-27", "bob", "m"), Counts(1, 0, 7, 4, 3)),
            (UsageKey("2026-11-28", "", "m"), Counts(1, 0, 7, 4, 3)),
            (UsageKey("2026-11-28", "alice", "m"), Counts(2, 1, 7 + 14, 4 + 8, 3 + 6)),
            (UsageKey("2026-11-28", "alice", "m:law"), Counts(1, 0, 7, 4, 3)),
        ]
        assert await usage.between(yesterday, DAY) == await usage.between(date.min, date.max) == expected
        assert await usage.between(DAY - timedelta(days=9), DAY - timedelta(days=2)) == []


async def test_several_processes_and_a_restart_share_the_file(tmp_path: Path) -> None:
    async with _opened(tmp_path / "usage") as one, _opened(tmp_path / "usage") as other:
        one.observe(_request("alice"))
        other.observe(_request("alice"))
    async with _opened(tmp_path / "usage") as usage:
        usage.observe(_request("alice"))
        assert await usage.between(DAY, DAY) == [(UsageKey("2026-11-28", "alice", "m"), Counts(3, 0, 21, 12, 9))]


async def test_counts_wait_for_a_disk_that_takes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "missing" / "usage"
    async with _opened(path) as usage:
        for _ in range(3):
            usage.observe(_request("alice"))
            with pytest.raises(StoreUnavailable):
                await usage.between(DAY, DAY)
        assert len(caplog.records) == 1
        path.parent.mkdir()
        assert await usage.between(DAY, DAY) == [(UsageKey("2026-11-28", "alice", "m"), Counts(3, 0, 21, 12, 9))]


async def test_days_are_removed_after_their_time(tmp_path: Path) -> None:
    async with _opened(tmp_path / "usage") as usage:
        for age in (MAX_DAYS, MAX_DAYS - 1, 0):
            usage.observe(_request("alice", day=DAY - timedelta(days=age)))
            await usage.between(DAY, DAY)
        found = await usage.between(date.min, date.max)
        assert [place.day for place, _ in found] == [(DAY - timedelta(days=MAX_DAYS - 1)).isoformat(), "2026-11-28"]


async def test_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    file = sqlite3.connect(tmp_path / "usage")
    file.execute("PRAGMA user_version = 2")
    file.close()
    async with _opened(tmp_path / "usage") as usage:
        with pytest.raises(StoreUnavailable, match="it has version 2"):
            await usage.between(DAY, DAY)
