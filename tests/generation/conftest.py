"""The context of a request that has no connection."""

from typing import Any

import pytest

from genai_server.generation.dependencies import Deadline, RequestContext
from genai_server.http.leniency import Leniency
from genai_server.http.request_state import request_state, start_request
from tests.hand_clock import HandClock


@pytest.fixture
def context(clock: HandClock) -> RequestContext:
    """A request with 60 s left, whose client sends nothing more and does not leave."""
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": [], "state": {}}
    start_request(scope, clock=clock)

    async def receive() -> Any:
        raise AssertionError

    return RequestContext(Deadline(60, clock), receive, request_state(scope).record, Leniency())
