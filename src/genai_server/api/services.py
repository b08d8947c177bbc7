"""What the routes work with, passed in when the app is made.

What routes depend on is `async` throughout: FastAPI has threads for everything else, two a request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from genai_server.api.drain import Drain
from genai_server.api.response_store import ResponseStore
from genai_server.config import Settings
from genai_server.engines.router import Router
from genai_server.text.codec import TextCodec
from genai_server.timing import Clock


@dataclass(frozen=True)
class Services:
    """Everything that a route needs; `codecs` has the text side of each device's model, `registry` the metrics."""

    settings: Settings
    router: Router
    codecs: Mapping[str, TextCodec]
    responses: ResponseStore
    clock: Clock
    started: int
    on_loopback: bool
    drain: Drain
    registry: CollectorRegistry

    @property
    def codec(self) -> TextCodec:
        """The text side of any device, for they all run the same model."""
        return next(iter(self.codecs.values()))


async def services(request: Request) -> Services:
    """The app's services."""
    found: Services = request.app.state.services
    return found


# What routes take as a parameter.
TheServices = Annotated[Services, Depends(services)]
