"""Destination and format of the log, the same in every process."""

import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import msgspec

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Formats for a terminal.
_SHORT, _SHORT_TIME = "%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"
# Libraries' loggers. asyncio is noisy at DEBUG, python_multipart warns of each wrong form, which gets a response, and
# httpx2, under huggingface_hub, reports each request at INFO.
_LOWEST_LEVELS = {"asyncio": logging.INFO, "python_multipart": logging.ERROR, "httpx2": logging.WARNING}
_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class DiscreetFormatter(logging.Formatter):
    """Logs the location and type of an exception, and of those that led to it, without their messages.

    A message may quote input of a client, such as a missing key, an invalid value or a text that cannot be encoded.
    """

    def formatException(self, ei: _Raised) -> str:
        """The lines below a record."""
        return "" if ei[1] is None else "\n".join(_traceback_lines(ei[1], set()))


class TextFormatter(DiscreetFormatter):
    """Each record as one line, with its `fields` (`extra={"fields": {…}}`) after the message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        return super().formatMessage(record) + "".join(f" {name}={value}" for name, value in fields.items())


class JsonFormatter(DiscreetFormatter):
    """Each record as one line with a JSON object: time, level, logger, message, and the record's `fields`."""

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
    """Log to standard error, one line for each record; `form` is text or json. Lines in a terminal are short."""
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


def _traceback_lines(error: BaseException, seen: set[int]) -> list[str]:
    """The traceback of an exception, after those of the exceptions that led to it."""
    seen.add(id(error))
    lines: list[str] = []
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None and id(earlier) not in seen:
        lines += [*_traceback_lines(earlier, seen), "which led to"]
    lines.append("Traceback (most recent call last):")
    lines += "".join(traceback.format_tb(error.__traceback__)).splitlines()
    kind = type(error)
    lines.append(f"{kind.__module__}.{kind.__qualname__}")
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            lines += [f"  | {line}" for line in _traceback_lines(inner, seen)]
    return lines


def _cut_asyncio(record: logging.LogRecord) -> bool:
    """Cut asyncio's own records to one line: the others show the task with its exception."""
    if record.name == "asyncio":
        record.msg, record.args = record.getMessage().partition("\n")[0], None
    return True


def _rename_uvicorn(record: logging.LogRecord) -> bool:
    """Name uvicorn's records of the server `uvicorn`: its own name for them, `uvicorn.error`, looks like a failure."""
    if record.name == "uvicorn.error":
        record.name = "uvicorn"
    return True
