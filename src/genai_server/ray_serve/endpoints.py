"""The endpoint that a request is for, and what it needs of a model."""

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from genai_server.apis.chat_completions import routes as chat_completions
from genai_server.apis.completions import routes as completions
from genai_server.apis.embeddings import rerank_routes as rerank
from genai_server.apis.embeddings import routes as embeddings
from genai_server.apis.messages import routes as messages
from genai_server.apis.ollama import embed_routes as ollama_embed
from genai_server.apis.own_chat import routes as chat
from genai_server.apis.responses import conversation_routes as conversations
from genai_server.apis.responses import routes as responses
from genai_server.apis.tokens import routes as tokens
from genai_server.pooling_model import Task

_MODULES = {
    Task.GENERATE: (chat, chat_completions, completions, conversations, messages, responses),
    Task.EMBED: (embeddings, ollama_embed),
    Task.RERANK: (rerank,),
}
_ROUTES = {task: [route for module in modules for route in module.router.routes] for task, modules in _MODULES.items()}


def requested_task(scope: Scope, fields: Mapping[str, Any]) -> Task | None:
    """What a request with these fields needs of its model; None for what every model can do."""
    if matches(tokens.router.routes, scope):
        # The prompt that they make, or its tokens.
        return None if fields.get("messages") is None else Task.GENERATE
    return next((task for task, routes in _ROUTES.items() if matches(routes, scope)), None)


def matches(routes: Iterable[BaseRoute], scope: Scope) -> bool:
    """Whether one of the routes answers a request."""
    return any(route.matches(scope)[0] is Match.FULL for route in routes)
