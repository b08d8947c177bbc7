"""Ollama's `keep_alive`: how long a request has its model stay loaded, and requests that are for nothing else."""

from fastapi import Request

from genai_server.api.catalog import ChosenModel
from genai_server.api.generation.request_context import RequestContext
from genai_server.api.middleware.auth import require_admin
from genai_server.api.services import Services
from genai_server.errors import AdminForbidden
from genai_server.messages.commands import KeepModel
from genai_server.messages.status_file import ModelState, ModelStatus
from genai_server.ollama_api.schemas import KeptFields

# More seconds than these mean always.
_LONGEST_KEPT = 10 * 365 * 86400.0


async def seconds_to_keep(
    body: KeptFields, request: Request, services: Services, context: RequestContext, *, is_all: bool
) -> float | None:
    """The seconds that the model stays loaded after the request, infinite for always; None if it says nothing.

    Without an operator's rights the field is left out, or AdminForbidden raised: if the request is for nothing else
    (`is_all`), and where fields are not left out.
    """
    if body.seconds_to_keep is None:
        return None
    try:
        await require_admin(request, services)
    except AdminForbidden as error:
        if is_all or not context.leniency.leaves_out("keep_alive"):
            raise error.reworded(f"keep_alive: {error.message}", param="keep_alive") from None
        return None
    return body.seconds_to_keep


async def keep(services: Services, about: ModelStatus, seconds: float | None) -> None:
    """Have a model stay loaded for so long without a request. Does nothing for None, or if that is set already."""
    if seconds is None:
        return
    kept = None if seconds > _LONGEST_KEPT else seconds
    if about.idle_unload != kept or about.state in (ModelState.UNLOADED, ModelState.UNLOADING):
        await services.models.command(KeepModel(about.name, kept))


async def load(services: Services, context: RequestContext, chosen: ChosenModel, seconds: float | None) -> None:
    """Load a model for a request without a text and have it stay loaded for so long; unload it for 0 seconds."""
    services.drain.require_open()
    context.record.model = chosen.id
    if seconds != 0:
        with context.record.arrival.loading():
            await context.waits_for(services.models.serving(chosen, context.deadline.seconds_left))
    await keep(services, chosen.about, seconds)
