"""The log's line for each request: what it was and what it took, never what was said."""

import logging
from typing import Any

from genai_server.api.account import Account

log = logging.getLogger(__name__)


def log_request(account: Account) -> None:
    """Write the line: at level info, or debug for who has only looked; while debugging with the client's address."""
    level = logging.DEBUG if account.is_look else logging.INFO
    if log.isEnabledFor(level):
        fields = fields_of(account)
        if log.isEnabledFor(logging.DEBUG) and account.scope.get("client"):
            fields["client"] = account.scope["client"][0]
        log.log(level, "request", extra={"fields": fields})


def fields_of(account: Account) -> dict[str, Any]:
    """What the line says; times in seconds, those of the first answer where there are several."""
    fields: dict[str, Any] = {
        "id": account.request_id,
        "method": account.scope["method"],
        "path": account.path or None,
        "status": account.status,
        "error": account.error_code,
        "seconds": account.seconds,
    }
    if account.answers:
        first, usage = account.answers[0], account.usage
        timings, phases = first.timings(), first.phases
        fields |= {
            "model": account.model,
            "device": account.device,
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "output_tokens": usage.completion,
            "queue": phases.queue,
            "prefill": phases.prefill,
            "decode": phases.decode,
            "ttft": timings.ttft,
            "tpot": timings.tpot,
            "finish_reason": ",".join(answer.outcome for answer in account.answers),
        }
    return {name: _short(value) for name, value in fields.items() if value is not None}


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
