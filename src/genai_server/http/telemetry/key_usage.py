"""Counts requests and tokens by day, API key and model (`KeyUsage`), for operators, who read them with `genai-server
usage` and at /v1/admin/usage.
"""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, NoReturn

from genai_server.errors import StoreUnavailable
from genai_server.http.telemetry.request_record import RequestRecord
from genai_server.store.database import Database, check_version

# Days that are kept.
MAX_DAYS = 400
# The largest size of the file: enough for a thousand keys, each with two models.
MAX_BYTES = 128 * 1024 * 1024
# Where the counts are while no file is configured; in the engines' folder.
FILE_NAME = "usage.sqlite"
# Seconds between two additions to the file.
_INTERVAL = 2.0
# Files of other versions are not changed; 0 is a new one.
KNOWN_VERSIONS = frozenset({0, 1})
_TABLE = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, key_name TEXT NOT NULL, model TEXT NOT NULL,
    requests INTEGER NOT NULL, refused INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key_name, model)
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    requests = requests + excluded.requests, refused = refused + excluded.refused,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens, cached_tokens = cached_tokens + excluded.cached_tokens,
    output_tokens = output_tokens + excluded.output_tokens
"""


class UsageKey(NamedTuple):
    """The group in which requests and tokens are added up: a day in UTC, such as 2026-11-28, the name of an API key,
    and a model. `key_name` is "" for requests without a key.
    """

    day: str
    key_name: str
    model: str


class Counts(NamedTuple):
    """How many requests of a group were answered, how many were refused, and how many tokens they had.

    `cached_tokens` is the part of the prompt tokens that was in the prefix cache.
    """

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum of both, number by number."""
        return Counts(*(one + another for one, another in zip(self, other, strict=True)))


class KeyUsage:
    """Counts requests and tokens by day, API key and model, in a file that all API processes share. For use in the
    event loop only. The caller must close it.

    `observe` counts in memory. `follow` adds these numbers to the file every few seconds. If the file cannot be
    written, for example because the disk is full, the numbers stay in memory until it can be. A crash loses the last
    seconds.
    """

    def __init__(self) -> None:
        self._database: Database | None = None
        # Not in the file yet.
        self._pending: dict[UsageKey, Counts] = {}

    def open(self, path: Path) -> None:
        """Open the file `path`, or create it. Before this call, numbers are only counted in memory."""
        self._database = Database(path, _prepare, MAX_BYTES)

    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended. A request that did not ask a model for answers is not counted."""
        if not record.is_for_answers:
            return
        ended = datetime.fromtimestamp(record.began_at + record.seconds, UTC)
        usage = record.usage
        counts = Counts(
            int(bool(record.answers)), int(not record.answers), usage.prompt, usage.cached, usage.completion
        )
        self._add(UsageKey(ended.date().isoformat(), record.key_name, record.model), counts)

    async def follow(self) -> NoReturn:
        """Add the counted numbers to the file every few seconds, until the task is cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            with suppress(StoreUnavailable):
                await self._write()

    async def between(self, first: date, last: date) -> list[tuple[UsageKey, Counts]]:
        """Return the numbers of all API processes from the day `first` to the day `last`, both included, sorted by day,
        key and model.

        The last seconds of other processes may be missing. Raises StoreUnavailable.
        """
        await self._write()
        return await self._opened.read(None, lambda file: list(_rows(file, first, last)))

    async def close(self) -> None:
        """Add the numbers that are only in memory to the file and close it. If the file cannot be written, they are
        lost.
        """
        if self._database is not None:
            with suppress(StoreUnavailable):
                await self._write()
            await self._database.close()

    @property
    def _opened(self) -> Database:
        assert self._database is not None
        return self._database

    def _add(self, key: UsageKey, counts: Counts) -> None:
        self._pending[key] = self._pending.get(key, Counts()).plus(counts)

    async def _write(self) -> None:
        """Add the numbers in memory to the file. If this raises StoreUnavailable, the numbers stay in memory."""
        if not self._pending:
            return
        written, self._pending = self._pending, {}
        try:
            await self._opened.write(None, lambda file: _add_all(file, written))
        except StoreUnavailable:
            for key, counts in written.items():
                self._add(key, counts)
            raise


def _prepare(file: sqlite3.Connection) -> None:
    check_version(file, KNOWN_VERSIONS)
    file.execute(_TABLE)
    file.execute(f"PRAGMA user_version = {max(KNOWN_VERSIONS)}")


def _add_all(file: sqlite3.Connection, counted: dict[UsageKey, Counts]) -> None:
    file.executemany(_ADD, [(*key, *counts) for key, counts in counted.items()])
    last = date.fromisoformat(max(key.day for key in counted))
    file.execute("DELETE FROM usage WHERE day <= ?", ((last - timedelta(days=MAX_DAYS)).isoformat(),))


def _rows(file: sqlite3.Connection, first: date, last: date) -> Iterator[tuple[UsageKey, Counts]]:
    rows = file.execute(
        "SELECT * FROM usage WHERE day BETWEEN ? AND ? ORDER BY day, key_name, model",
        (first.isoformat(), last.isoformat()),
    )
    for day, key_name, model, *counts in rows:
        yield UsageKey(day, key_name, model), Counts(*counts)
