"""Answers unexpected exceptions, and logs them. Plain ASGI.

Starlette's own handler raises such an exception again after its answer. Then uvicorn closes the connection, on which
the client may have sent its next request.
"""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.api.errors import error_response, internal_error

log = logging.getLogger(__name__)


class InternalErrors:
    """Answers an exception with 500; the connection stays open. An answer that has begun is cut off instead."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception:
            if has_begun:
                raise  # uvicorn logs it and closes the connection
            log.exception("request %s met an internal error", scope["state"]["request_id"])
            await error_response(internal_error(), scope)(scope, receive, send)
