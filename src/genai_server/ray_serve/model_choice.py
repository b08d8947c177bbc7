"""Chooses the Ray Serve deployment for a request, by the task that the endpoint needs (such as embedding) and by the
model's name in the request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from genai_server.apis import chat_completions, completions, decisions, embeddings, scoring, tokens
from genai_server.apis import own_chat as chat
from genai_server.apis.messages import routes as messages
from genai_server.apis.ollama import routes as ollama
from genai_server.apis.responses import conversation_routes as conversations
from genai_server.apis.responses import routes as responses
from genai_server.apis.transcriptions import routes as transcriptions
from genai_server.config.settings import Settings
from genai_server.errors import ModelNotFound, quoted
from genai_server.generation.catalog import FORMER_DEFAULT, plain_name, task_unsupported
from genai_server.messages.server_status import ANY_NAME
from genai_server.model_files.pooling_model import Task

_GENERATING = (chat, chat_completions, completions, conversations, decisions, messages, responses, scoring)
_ROUTES = {
    Task.GENERATE: [route for module in _GENERATING for route in module.router.routes],
    Task.EMBED: [*embeddings.router.routes, *ollama.embed_router.routes],
    Task.RERANK: embeddings.rerank_router.routes,
    Task.TRANSCRIBE: transcriptions.router.routes,
}


def requested_task(scope: Scope, fields: Mapping[str, Any]) -> Task | None:
    """Return the task that the endpoint of a request needs of its model; None if models of any task can answer it.
    `fields` are the fields of the request's body.
    """
    if matches(tokens.router.routes, scope):
        # The prompt that they make, or its tokens.
        return None if fields.get("messages") is None else Task.GENERATE
    if "label_token_ids" in fields:
        return Task.GENERATE  # SGLang's form of /v1/score
    return next((task for task, routes in _ROUTES.items() if matches(routes, scope)), None)


def matches(routes: Iterable[BaseRoute], scope: Scope) -> bool:
    """Return whether one of the routes serves the path and method of a request, given by its ASGI scope."""
    return any(route.matches(scope)[0] is Match.FULL for route in routes)


@dataclass(frozen=True)
class ModelNames:
    """The names of the deployed models with their tasks, and the choice of a model by the `model` field of a request.
    The ingress uses it; the rules are those of a single server (`Catalog.choose_for`).
    """

    settings: Settings
    # What each model is for.
    tasks: Mapping[str, Task]

    def choose(self, id: object, task: Task | None = None) -> str:
        """Return the name of the model for `id`, the value of a request's field `model`, which may also be an alias. If
        `id` is not a string, the result is the first model for `task`, or the first model of all.

        Raises ModelNotFound for an unknown name, and TaskUnsupported if the model is for another task than `task`
        (None: any). If only one model is deployed, it is returned without checks, because its replicas check the name
        and the task.
        """
        served = list(self.settings.served)
        suitable = [name for name in served if task in (None, self.tasks[name])]
        if len(served) == 1 or not isinstance(id, str):
            return (suitable or served)[0]
        model = self._named(id)
        if model not in suitable:
            assert task is not None
            raise task_unsupported(model, task, suitable)
        return model

    def _named(self, id: str) -> str:
        served, aliases = self.settings.served, self.settings.aliases
        plain = plain_name(id)
        for name in (id, plain, id.rpartition(":")[0], plain.rpartition(":")[0], ANY_NAME):
            if name in served or name in aliases:
                return aliases.get(name, name)
            if name == FORMER_DEFAULT and ANY_NAME not in aliases:
                return next(iter(served))
        names = ", ".join(map(quoted, served))
        raise ModelNotFound(f"model {quoted(id)} is not served; {names} are", param="model")
