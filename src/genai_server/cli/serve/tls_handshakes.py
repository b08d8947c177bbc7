"""A time limit for TLS handshakes, for which uvicorn would use asyncio's 60 seconds."""

import asyncio
from collections.abc import Callable
from functools import partial

from uvicorn import Config


class HandshakeConfig(Config):
    """uvicorn's configuration with a limit for TLS handshakes: `timeout_keep_alive` seconds, as for a request's
    head.
    """

    def get_loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Return the factory of the event loop in which uvicorn runs (called by uvicorn)."""
        make = super().get_loop_factory()
        return make if make is None or not self.is_ssl else partial(_loop_with_limit, make, self.timeout_keep_alive)


def _loop_with_limit(make: Callable[[], asyncio.AbstractEventLoop], seconds: float) -> asyncio.AbstractEventLoop:
    loop = make()
    # uvicorn has no option for this argument.
    loop.create_server = partial(loop.create_server, ssl_handshake_timeout=seconds)  # type: ignore[method-assign]
    return loop
