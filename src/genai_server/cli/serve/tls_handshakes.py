"""A limit for TLS handshakes that do not end, which uvicorn leaves at asyncio's 60 seconds."""

import asyncio
from collections.abc import Callable
from functools import partial

from uvicorn import Config


class HandshakeConfig(Config):
    """uvicorn's configuration. A TLS handshake must be complete within `timeout_keep_alive`, like a request's head."""

    def get_loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Called by uvicorn for the event loop that it runs in."""
        make = super().get_loop_factory()
        return make if make is None or not self.is_ssl else partial(_loop_with_limit, make, self.timeout_keep_alive)


def _loop_with_limit(make: Callable[[], asyncio.AbstractEventLoop], seconds: float) -> asyncio.AbstractEventLoop:
    loop = make()
    # uvicorn has no option for this argument.
    loop.create_server = partial(loop.create_server, ssl_handshake_timeout=seconds)  # type: ignore[method-assign]
    return loop
