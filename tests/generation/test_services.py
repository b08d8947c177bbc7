"""Dependencies of the routes."""

import inspect
from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from genai_server.apis.admin import runtime_options
from genai_server.apis.chat_completions import routes as chat_completions
from genai_server.apis.completions import routes as completions
from genai_server.apis.messages import routes as messages
from genai_server.apis.models import routes as models
from genai_server.apis.own_chat import routes as chat
from genai_server.apis.responses import routes as responses
from genai_server.apis.status import health
from genai_server.apis.tokens import routes as tokens


def needs(dependant: Dependant) -> Iterator[object]:
    for inner in dependant.dependencies:
        yield inner.call
        yield from needs(inner)


def test_no_request_waits_for_a_thread_before_its_route_begins() -> None:
    modules = (runtime_options, chat, chat_completions, completions, messages, models, responses, health, tokens)
    routes = [route for module in modules for route in module.router.routes if isinstance(route, APIRoute)]
    found = [call for route in routes for call in needs(route.dependant)]
    assert len(found) > len(routes)
    assert [call for call in found if not inspect.iscoroutinefunction(call)] == []
