"""The services that routes depend on, passed in when the app is created.

All route dependencies are `async`: FastAPI would run others in threads, two for each request.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from genai_server.config import Settings
from genai_server.generation.catalog import Catalog, ServedModel
from genai_server.generation.checked_specs import CheckedSpecs
from genai_server.generation.pulling import PullModel
from genai_server.grammar_checker.pool import GrammarChecker
from genai_server.http.middleware.drain import Drain
from genai_server.pooling_model import Task
from genai_server.timing import Clock


@dataclass(frozen=True)
class Services:
    """Everything that a route needs."""

    settings: Settings
    models: Catalog
    grammars: GrammarChecker
    specs: CheckedSpecs
    # In seconds.
    clock: Clock
    drain: Drain
    # The Prometheus metrics.
    registry: CollectorRegistry
    # Downloads models from a hub.
    pull: PullModel

    async def served(self, model: str | None, task: Task | None = None) -> ServedModel:
        """The model of a request that only needs its text side.

        Raises ModelNotFound, TaskUnsupported if the model does not support the task, and Unavailable.
        """
        chosen = self.models.choose(model) if task is None else self.models.choose_for(model, task)
        _, served = await self.models.serving(chosen, self.settings.request_timeout)
        return served

    def max_model_len(self, served: ServedModel) -> int | None:
        """Maximum number of tokens of prompt and answer together; None until an engine has reported it."""
        context = served.context_length
        return None if context is None else min(self.settings.max_length, context)


async def services(request: Request) -> Services:
    """The app's services."""
    found: Services = request.app.state.services
    return found


# The type of a route's parameter.
TheServices = Annotated[Services, Depends(services)]
