"""What the routes depend on."""

import inspect
from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from genai_server.api.admin import runtime_options
from genai_server.api.routes import chat, chat_completions, completions, health, messages, models, responses, tokens


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
