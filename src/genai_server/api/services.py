"""What the routes work with, passed in when the app is made.

All dependencies of routes are `async`: FastAPI would run others in threads, two for each request.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from genai_server.api.catalog import Catalog, ServedModel
from genai_server.api.generation.checked_specs import CheckedSpecs
from genai_server.api.generation.response_store import ResponseStore
from genai_server.api.middleware.drain import Drain
from genai_server.api.pulling import PullModel
from genai_server.config import Settings
from genai_server.grammar_checker.pool import GrammarChecker
from genai_server.pooling_model import Task
from genai_server.timing import Clock


@dataclass(frozen=True)
class Services:
    """Everything that a route needs."""

    settings: Settings
    models: Catalog
    responses: ResponseStore
    grammars: GrammarChecker
    specs: CheckedSpecs
    # In seconds.
    clock: Clock
    # Whether only this machine can reach the server, as far as is known.
    on_loopback: bool
    drain: Drain
    # Holds the metrics.
    registry: CollectorRegistry
    # Fetches models from a hub.
    pull: PullModel

    async def served(self, model: str | None, task: Task | None = None) -> ServedModel:
        """The model that a request names, for its text side alone.

        Raises ModelNotFound, TaskUnsupported if it is not for the task, and Unavailable.
        """
        chosen = self.models.choose(model) if task is None else self.models.choose_for(model, task)
        _, served = await self.models.serving(chosen, self.settings.request_timeout)
        return served

    def max_model_len(self, served: ServedModel) -> int | None:
        """Most tokens of a request's prompt and answer together; None until an engine has told the model's limit."""
        context = served.context_length
        return None if context is None else min(self.settings.max_length, context)


async def services(request: Request) -> Services:
    """The app's services."""
    found: Services = request.app.state.services
    return found


# The type of a route's parameter.
TheServices = Annotated[Services, Depends(services)]
