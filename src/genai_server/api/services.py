"""What the routes work with, passed in when the app is made."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request

from genai_server.api.drain import Drain
from genai_server.api.response_store import ResponseStore
from genai_server.config import Settings
from genai_server.engines.router import Router
from genai_server.text.codec import TextCodec
from genai_server.timing import Clock


@dataclass(frozen=True)
class Services:
    """Everything that a route needs; `codecs` has the text side of each device's model."""

    settings: Settings
    router: Router
    codecs: Mapping[str, TextCodec]
    responses: ResponseStore
    clock: Clock
    started: int
    on_loopback: bool
    drain: Drain


def services(request: Request) -> Services:
    """The app's services, for routes to depend on."""
    found: Services = request.app.state.services
    return found


def request_id(request: Request) -> str:
    """The request's name, for routes to depend on."""
    name: str = request.state.request_id
    return name
