"""Answers in place of the API processes while none of them serves."""

import logging
import threading
from collections.abc import Callable
from socket import socket

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server

from genai_server.apis.dialects import DIALECTS
from genai_server.errors import ServerStarting
from genai_server.http.error_responses import error_response
from genai_server.http.middleware.request_lifetime import RequestLifetime

log = logging.getLogger(__name__)


class StandIn:
    """A server in a thread of this process, whose answer to all but `/livez` is a 503.

    `config` makes uvicorn's configuration of an app.
    """

    def __init__(self, config: Callable[[ASGIApp], Config], listener: socket) -> None:
        self._config = config
        self._listener = listener
        self._server: Server | None = None

    def start(self) -> None:
        """Accept connections. Does nothing if it does so already."""
        if self._server is None:
            log.info("no API process is ready: requests get a 503")
            config = self._config(RequestLifetime(_unready, dialects=DIALECTS))
            config.lifespan = "off"
            config.ws = "none"
            self._server = Server(config)
            listener = self._listener.dup()  # which uvicorn closes
            threading.Thread(target=self._server.run, args=([listener],), name="stand-in", daemon=True).start()

    def stop(self) -> None:
        """Accept no more connections; those that are open get their answers."""
        if self._server is not None:
            self._server.should_exit = True
            self._server = None


async def _unready(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):  # unread input would cost the client the answer
        pass
    response = JSONResponse({"status": "ok"}) if scope["path"] == "/livez" else error_response(ServerStarting(), scope)
    response.headers["connection"] = "close"
    await response(scope, receive, send)
