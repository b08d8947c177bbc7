"""The limit of all request bodies of an API process together (docs/decisions/0030)."""

from genai_server.errors import BodiesTooLarge

# Where the app leaves AllBodies in the state of its lifespan, for the HTTP server.
ALL_BODIES = "all_bodies"


class AllBodies:
    """Counts the bytes of all bodies, from their first bytes until their requests have ended."""

    def __init__(self, most: int) -> None:
        # Most bytes; a single body is exempt.
        self._most = most
        self._kept = 0

    def keep(self, before: int, now: int) -> None:
        """Count `now` bytes of a body, of which `before` count already.

        Raises BodiesTooLarge if it has grown and there is no room; then it counts as before.
        """
        others = self._kept - before
        if now > before and others > 0 and others + now > self._most:
            raise BodiesTooLarge(
                f"the bodies of all requests together may have at most {self._most} bytes "
                f"(GENAI_MAX_BODIES_BYTES), and {self._kept} are there; try again"
            )
        self._kept = others + now
