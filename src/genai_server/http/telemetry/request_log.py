"""The log's line for each request: what it was and what it took, never its text."""

import logging
from typing import Any

from msgspec.structs import asdict

from genai_server.http.telemetry.request_record import RequestRecord

log = logging.getLogger(__name__)


def log_request(record: RequestRecord) -> None:
    """Write the line: at level info, or debug for a request that only reads. At debug it has the client's address."""
    level = logging.DEBUG if record.is_look else logging.INFO
    if log.isEnabledFor(level):
        fields = fields_of(record)
        if log.isEnabledFor(logging.DEBUG) and record.scope.get("client"):
            fields["client"] = record.scope["client"][0]
        log.log(level, "request", extra={"fields": fields})


def fields_of(record: RequestRecord) -> dict[str, Any]:
    """The line's fields; times are in seconds, and the first answer's where there are several."""
    fields: dict[str, Any] = {
        "id": record.request_id,
        "method": record.scope["method"],
        "path": record.path or None,
        "status": record.status,
        "error": record.error_code,
        "seconds": record.seconds,
        "unique_id": record.unique_id if record.unique_id != record.request_id else None,
    }
    if record.answers:
        first, usage = record.answers[0], record.usage
        timings = first.timings()
        fields |= {
            "model": record.model,
            "device": record.device,
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "output_tokens": usage.completion,
            **({} if timings.breakdown is None else asdict(timings.breakdown)),
            "total_latency": timings.total_latency,
            "ttft": timings.ttft,
            "tpot": timings.tpot,
            "finish_reason": ",".join(answer.outcome for answer in record.answers),
        }
    return {name: _short(value) for name, value in fields.items() if value is not None}


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
