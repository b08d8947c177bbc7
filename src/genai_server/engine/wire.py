"""What joins the engine's loop to the API processes."""

from collections.abc import Callable
from dataclasses import dataclass

from genai_server.engine.inbox import Inbox
from genai_server.messages.frames import ToApi

# To a connection; must not block.
Send = Callable[[int, list[ToApi]], None]


@dataclass(frozen=True)
class Wire:
    """`inbox` brings (connection, message) from any thread; `send` delivers messages to a connection."""

    inbox: Inbox
    send: Send
