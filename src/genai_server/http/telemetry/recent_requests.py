"""Keeps the most recent requests, without prompts and answers, so that operators can list them (`RecentRequests`)."""

import json
import logging
import os
import threading
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
    """Keeps the most recent requests that asked for answers, including refused ones. The API processes share them
    through files in a folder. After `open`, the caller must close it.

    `observe` is for the event loop and never waits for the disk, since a thread writes. If the disk is too slow, the
    other API processes miss some requests of this one.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._own_file = _FILES.format(os.getpid())
        # Guards the next two fields, which the event loop and other threads use.
        self._lock = threading.Lock()
        self._entries: deque[dict[str, Any]] = deque(maxlen=MAX_REQUESTS)
        # Entries that have not been written to the file yet.
        self._unwritten: deque[dict[str, Any]] = deque(maxlen=MAX_REQUESTS)
        self._has_unwritten = threading.Event()
        self._is_closed = False
        # Number and sum, in seconds, of the times to first tokens that this process has seen, by model and device.
        self.first_tokens: dict[tuple[str, str], tuple[int, float]] = {}

    def open(self, folder: Path) -> None:
        """Begin to keep requests, and to share them with the other API processes through files in the folder
        `folder`.
        """
        self._folder, self._own_file = folder, _FILES.format(os.getpid())
        # A daemon, because a disk that hangs may block it forever.
        threading.Thread(
            target=self._write, args=(folder / self._own_file,), name="recent-requests", daemon=True
        ).start()

    def observe(self, record: RequestRecord) -> None:
        """Keep a request that has ended. A request that did not ask a model for answers is not kept."""
        if self._folder is None or not record.is_for_answers:
            return
        for answer in record.answers:
            self._count(record, answer.timings().ttft)
        entry = _entry(record)
        with self._lock:
            self._entries.append(entry)
            self._unwritten.append(entry)
        self._has_unwritten.set()

    def ended_after(self, since: float) -> list[dict[str, Any]]:
        """Return the most recent requests of all API processes that ended after the time `since`, newest first, at most
        MAX_REQUESTS, as JSON objects. Blocks, since it reads files.

        `since` is in seconds since 1970.
        """
        if self._folder is None:
            return []
        with self._lock:
            entries = list(self._entries)
        for file in self._folder.glob(_FILES.format("*")):
            if file.name != self._own_file:
                entries += _read(file)
        entries = [entry for entry in entries if entry["ended"] > since]
        return sorted(entries, key=lambda entry: float(entry["ended"]))[: -MAX_REQUESTS - 1 : -1]

    def close(self) -> None:
        """Let the thread that writes the requests to a file end, without waiting for it."""
        self._is_closed = True
        self._has_unwritten.set()

    def _count(self, record: RequestRecord, ttft: float | None) -> None:
        if ttft is not None:
            number, total = self.first_tokens.get((record.model, record.device), (0, 0.0))
            self.first_tokens[record.model, record.device] = (number + 1, total + ttft)

    def _write(self, path: Path) -> None:
        """Append new requests to the file `path` of this process, until `close` is called; the body of a thread. The
        file never has more than 2 * MAX_REQUESTS lines.
        """
        num_lines = 0
        while self._has_unwritten.wait() and not self._is_closed:
            self._has_unwritten.clear()
            with self._lock:
                entries, all_entries = list(self._unwritten), list(self._entries)
                self._unwritten.clear()
            is_full = num_lines + len(entries) > 2 * MAX_REQUESTS
            written = all_entries if is_full else entries
            try:
                with path.open("w" if is_full else "a", encoding="utf-8") as file:
                    file.writelines(json.dumps(entry) + "\n" for entry in written)
            except OSError as error:
                log.warning("requests are not kept for operators: %s", error.strerror)
            num_lines = len(written) if is_full else num_lines + len(written)


def _entry(record: RequestRecord) -> dict[str, Any]:
    usage = record.usage
    return {
        "id": record.request_id,
        "unique_id": record.unique_id,
        "object": "request",
        "key_name": record.key_name or None,
        "path": record.path,
        "model": record.unknown_model or record.model,
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


def _read(file: Path) -> Iterable[dict[str, Any]]:
    """Yield the requests in the file of another process, as JSON objects. That process may be writing the last line at
    the moment, so invalid lines are skipped; an unreadable file has no requests.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue
