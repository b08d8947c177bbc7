"""Keys and values that are nowhere: for tests of which slots hold what."""

from genai_server.errors import RunnerFailed


class NoBuffers:
    fails = False

    def copy(self, source: int, target: int, length: int) -> None:
        if self.fails:
            raise RunnerFailed("no memory")

    def swap(self, one: int, other: int, length: int) -> None:
        if self.fails:
            raise RunnerFailed("no memory")

    def give_back(self, slot: int, first: int) -> None:
        """Frees nothing."""
