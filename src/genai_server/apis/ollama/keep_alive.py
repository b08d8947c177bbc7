"""Ollama's field `keep_alive`, which says how long a model stays loaded, and requests that only load or unload a
model.
"""

from fastapi import Request

from genai_server.apis.ollama.schemas import KeptFields
from genai_server.errors import AdminForbidden
from genai_server.generation.catalog import ChosenModel
from genai_server.generation.dependencies import RequestContext, Services
from genai_server.http.middleware.authentication import require_admin
from genai_server.messages.commands import KeepModel
from genai_server.messages.server_status import ModelState, ModelStatus

# More seconds than this mean forever.
_MAX_KEPT = 10 * 365 * 86400.0


async def seconds_to_keep(body: KeptFields, request: Request, context: RequestContext, *, is_all: bool) -> float | None:
    """For how many seconds the model stays loaded after the request: infinite for "always"; None if the request does
    not say.

    Only operators may use the field. For other clients it is ignored; AdminForbidden is raised instead if the request
    does nothing else (`is_all`) or if GENAI_STRICT is set.
    """
    if body.seconds_to_keep is None:
        return None
    try:
        await require_admin(request)
    except AdminForbidden as error:
        if is_all or not context.leniency.leave_out("keep_alive"):
            raise error.at("keep_alive") from None
        return None
    return body.seconds_to_keep


async def keep(services: Services, status: ModelStatus, seconds: float | None) -> None:
    """Set for how many seconds a model stays loaded without requests. Does nothing for None or for an unchanged
    value.
    """
    if seconds is None:
        return
    limit = None if seconds > _MAX_KEPT else seconds
    if status.idle_unload != limit or status.state in (ModelState.UNLOADED, ModelState.UNLOADING):
        await services.models.command(KeepModel(status.name, limit))


async def load(services: Services, context: RequestContext, chosen: ChosenModel, seconds: float | None) -> None:
    """Load a model for a request without a prompt, and set for how many `seconds` it stays loaded. With 0 it is
    unloaded instead.
    """
    services.drain.require_open()
    context.record.model = chosen.id
    if seconds != 0:
        with context.record.arrival.loading():
            await context.run_while_connected(services.models.serving(chosen, context.deadline.seconds_left))
    await keep(services, chosen.about, seconds)
