"""The log of each process of the server: `configure_logging` sets its level and format, text or JSON, and writes to
standard error; `written_in_thread` keeps a blocked standard error from blocking the server. Messages of exceptions are
left out, because they may quote input of clients.
"""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import msgspec

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Formats for a terminal.
_SHORT, _SHORT_TIME = "%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"
# Libraries' loggers. asyncio and httpcore are noisy at DEBUG, python_multipart warns of each wrong form, which gets a
# response, and httpx and httpx2, under huggingface_hub, report each request with its URL at INFO.
_LOWEST_LEVELS = {
    "asyncio": logging.INFO,
    "httpcore": logging.INFO,
    "httpx": logging.WARNING,
    "httpx2": logging.WARNING,
    "python_multipart": logging.ERROR,
}
# Maximum number of lines that wait for standard error, and seconds for which the end of a process waits for them.
_MAX_WAITING, _END_SECONDS = 1000, 1.0
_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class RedactingFormatter(logging.Formatter):
    """A log formatter that shows an exception, and the exceptions that caused it, with their types and locations but
    without their messages. Base of the formatters here.

    A message may quote input of a client, such as a missing key, an invalid value or a text that cannot be encoded.
    """

    def formatException(self, ei: _Raised) -> str:
        """Return the lines that describe an exception in the log, without the messages of exceptions. `ei` is what
        `sys.exc_info` returns.
        """
        return "" if ei[1] is None else "\n".join(_traceback_lines(ei[1], set()))


class TextFormatter(RedactingFormatter):
    """A log formatter that writes each record as one line of text, with the record's own values (`extra={"fields":
    {…}}`) after the message.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        return super().formatMessage(record) + "".join(f" {name}={value}" for name, value in fields.items())


class JsonFormatter(RedactingFormatter):
    """A log formatter that writes each record as one line with a JSON object: time, level, logger, message, the
    record's own values (`extra={"fields": {…}}`), and the exception if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure_logging(level: str, form: str = "text") -> None:
    """Let this process log to standard error, one line for each record of `level` ("debug", "info" …) and above. `form`
    is the format, "text" or "json". Replaces an earlier configuration.

    In a terminal, text lines are shorter.
    """
    handler = logging.StreamHandler()
    is_short = form == "text" and sys.stderr.isatty() and level != "debug"
    text = TextFormatter(_SHORT, _SHORT_TIME) if is_short else TextFormatter(_TEXT)
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    handler.addFilter(_cut_asyncio)
    handler.addFilter(_rename_uvicorn)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name, lowest in _LOWEST_LEVELS.items():
        logging.getLogger(name).setLevel(max(lowest, logging.getLevelName(level.upper())))
    if is_short:  # the welcome says that the server is ready, and the server's own lines that it stops
        handler.addFilter(lambda record: record.name != "uvicorn" or record.levelno > logging.INFO)


@contextmanager
def written_in_thread() -> Iterator[None]:
    """Context manager that has the log's lines written by a thread during the block, so that a blocked standard error,
    such as a pipe that nobody reads, blocks nothing else.

    Lines that do not fit into the queue are dropped, and the next line says how many. If several apps run in one
    process, the thread of the first app writes all lines until that app ends; then they are written without a thread.
    """
    handler = next(
        (candidate for candidate in logging.getLogger().handlers if type(candidate) is logging.StreamHandler), None
    )
    if handler is not None and isinstance(handler.stream, ThreadedLineStream):
        yield
        return
    try:
        descriptor = -1 if handler is None else handler.stream.fileno()
    except (OSError, ValueError):  # it is no file
        descriptor = -1
    if handler is None or descriptor < 0:
        yield
        return

    def dropped(number: int) -> str:
        words = "standard error was blocked; %d lines of the log were dropped"
        return handler.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, (number,), None)) + "\n"

    stream, lines = handler.stream, ThreadedLineStream(descriptor, dropped)
    handler.setStream(lines)
    try:
        yield
    finally:
        handler.setStream(stream)
        lines.close()


class ThreadedLineStream:
    """A text stream for a log handler, whose lines a thread writes to the file descriptor `descriptor`. Thread-safe.
    The caller must close it.

    `write` never blocks. If lines had to be dropped because the thread is too slow, `dropped`, called with their
    number, returns the line to write in their place.
    """

    def __init__(self, descriptor: int, dropped: Callable[[int], str]) -> None:
        self._descriptor = descriptor
        self._dropped = dropped
        # Guards the next two fields.
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._num_dropped = 0
        self._has_lines = threading.Event()
        self._is_closed = False
        # A daemon, because it may be blocked forever.
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line for the thread, or drop it if too many lines are waiting."""
        with self._lock:
            if len(self._waiting) < _MAX_WAITING:
                self._waiting.append(line)
            else:
                self._num_dropped += 1
        self._has_lines.set()

    def flush(self) -> None:
        """Do nothing, because the thread writes lines as soon as it can. Log handlers call it after each line."""

    def close(self) -> None:
        """End the thread when it has written all lines. Waits for at most a second."""
        self._is_closed = True
        self._has_lines.set()
        self._thread.join(_END_SECONDS)

    def _write_all(self) -> None:
        is_closed = False
        while not is_closed:
            self._has_lines.wait()
            self._has_lines.clear()
            is_closed = self._is_closed
            with self._lock:
                lines, self._waiting = self._waiting, []
                num_dropped, self._num_dropped = self._num_dropped, 0
            if num_dropped:
                lines.append(self._dropped(num_dropped))
            data = "".join(lines).encode(errors="backslashreplace")
            with suppress(OSError):  # nobody reads any more
                while data:
                    data = data[os.write(self._descriptor, data) :]


def _traceback_lines(error: BaseException, shown: set[int]) -> list[str]:
    """Return the lines of an exception's traceback without messages, after those of the exceptions that caused it.
    `shown` has the ids of the exceptions that were shown already, and gets those of the exceptions that are shown now.
    """
    shown.add(id(error))
    lines: list[str] = []
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None and id(earlier) not in shown:
        lines += [*_traceback_lines(earlier, shown), "which led to"]
    lines.append("Traceback (most recent call last):")
    lines += "".join(traceback.format_tb(error.__traceback__)).splitlines()
    kind = type(error)
    lines.append(f"{kind.__module__}.{kind.__qualname__}")
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            lines += [f"  | {line}" for line in _traceback_lines(inner, shown)]
    return lines


def _cut_asyncio(record: logging.LogRecord) -> bool:
    """Cut the message of a record of asyncio to its first line, since the other lines show a task with its exception,
    whose message may quote a client. A log filter; it keeps all records, so it returns True.
    """
    if record.name == "asyncio":
        record.msg, record.args = record.getMessage().partition("\n")[0], None
    return True


def _rename_uvicorn(record: logging.LogRecord) -> bool:
    """Rename records of the logger `uvicorn.error` to `uvicorn`, because uvicorn's name for its ordinary lines looks
    like a failure. A log filter; it keeps all records, so it returns True.
    """
    if record.name == "uvicorn.error":
        record.name = "uvicorn"
    return True
