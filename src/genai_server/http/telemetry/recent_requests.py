"""The last requests that have ended, without their texts, for operators."""

import json
import logging
import os
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from genai_server.http.telemetry.request_record import RequestRecord

log = logging.getLogger(__name__)

# How many requests each API process keeps, and a list has.
MAX_REQUESTS = 200
_FILES = "recent-requests-{}.jsonl"


class RecentRequests:
    """Keeps requests for answers, and those that were refused. All API processes keep theirs in one folder.

    Each has a file of its own there, of at most twice as many lines as it keeps requests.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._lines: deque[str] = deque(maxlen=MAX_REQUESTS)
        self._num_written = 0

    def open(self, folder: Path) -> None:
        """Keep requests in this folder from now on."""
        self._file = folder / _FILES.format(os.getpid())

    def observe(self, record: RequestRecord) -> None:
        """Keep a request that has ended, if it is one for answers."""
        is_refused = record.status >= 400 and not record.is_look and record.path and "/admin/" not in record.path
        if self._file is None or not (record.answers or is_refused):
            return
        self._lines.append(json.dumps(_entry(record)) + "\n")
        self._num_written += 1
        try:
            if self._num_written % MAX_REQUESTS == 0:
                self._file.write_text("".join(self._lines), encoding="utf-8")
            else:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(self._lines[-1])
        except OSError as error:
            log.warning("a request is not kept for operators: %s", error.strerror)

    def ended_after(self, since: float) -> list[dict[str, Any]]:
        """The last requests of all API processes that ended after this time, in seconds since 1970; newest first."""
        if self._file is None:
            return []
        files = self._file.parent.glob(_FILES.format("*"))
        found = [entry for file in files for entry in _entries(file) if entry["ended"] > since]
        return sorted(found, key=lambda entry: float(entry["ended"]))[: -MAX_REQUESTS - 1 : -1]


def _entry(record: RequestRecord) -> dict[str, Any]:
    usage = record.usage
    return {
        "id": record.request_id,
        "unique_id": record.unique_id,
        "object": "request",
        "path": record.path,
        "model": record.model,
        "device": record.device,
        "status": record.status,
        "error": record.error_code,
        "finish_reason": ",".join(answer.outcome for answer in record.answers),
        "ended": round(time.time(), 3),
        "seconds": round(record.seconds, 4),
        "ttft": record.answers[0].timings().ttft if record.answers else None,
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def _entries(file: Path) -> Iterable[dict[str, Any]]:
    """The requests in a file. Another process may be writing its last line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue
