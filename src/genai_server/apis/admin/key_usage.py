"""Admin endpoint that reports requests and tokens by day, API key and model."""

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from fastapi import Query

from genai_server.apis.admin.engine_calls import admin_router
from genai_server.apis.admin.schemas import UsageParameters, UsageResponse
from genai_server.generation.dependencies import ServicesDep

# Days that are shown without parameters.
_DAYS = 31

router = admin_router(503)


@router.get("/v1/admin/usage", response_model=UsageResponse)
async def get_usage(query: Annotated[UsageParameters, Query()], services: ServicesDep) -> dict[str, Any]:
    """The requests and tokens of each API key and model on each day (in UTC), oldest first. Without `since`, the last
    31 days.

    With GENAI_USAGE_FILE the numbers are kept when the server stops. Those that other API processes have counted in the
    last seconds may be missing.
    """
    last = query.until or datetime.now(UTC).date()
    first = query.since or max(date.min + timedelta(days=_DAYS), last) - timedelta(days=_DAYS - 1)
    found = await services.usage.between(first, last)
    entries = [
        {"object": "usage", **key._asdict(), "key_name": key.key_name or None, **counts._asdict()}
        for key, counts in found
    ]
    return {"object": "list", "data": entries}
