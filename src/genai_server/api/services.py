"""What the routes work with, passed in when the app is made.

What routes depend on is `async` throughout: FastAPI has threads for everything else, two a request.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from genai_server.api.catalog import Catalog
from genai_server.api.drain import Drain
from genai_server.api.response_store import ResponseStore
from genai_server.config import Settings
from genai_server.timing import Clock


@dataclass(frozen=True)
class Services:
    """Everything that a route needs; `registry` has the metrics."""

    settings: Settings
    models: Catalog
    responses: ResponseStore
    clock: Clock
    on_loopback: bool
    drain: Drain
    registry: CollectorRegistry


async def services(request: Request) -> Services:
    """The app's services."""
    found: Services = request.app.state.services
    return found


# What routes take as a parameter.
TheServices = Annotated[Services, Depends(services)]
