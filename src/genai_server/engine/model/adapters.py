"""The LoRA adapters of one engine: each is loaded once, for all requests that bring it."""

import logging
from pathlib import Path

from genai_server.engine.runners.base import ExportingRunner
from genai_server.errors import AdapterLoadFailed, ModelNotFound, Unavailable
from genai_server.generation import Adapter
from genai_server.quoted_values import quoted

log = logging.getLogger(__name__)


class Adapters:
    """What `runner` has loaded, by the adapters' ids; belongs to the loop's thread.

    A sequence holds what it has found here until it ends, so that an adapter that is unloaded is there for as long as
    somebody answers with it, and its memory is free afterwards.
    """

    def __init__(self, runner: ExportingRunner) -> None:
        self._runner = runner
        self._loaded: dict[str, object] = {}
        self._unloaded: set[str] = set()

    def load(self, adapter: Adapter) -> None:
        """Have it for requests. Raises AdapterLoadFailed."""
        if adapter.id in self._loaded:
            return
        try:
            self._loaded[adapter.id] = self._runner.load_adapter(Path(adapter.path))
        except AdapterLoadFailed as error:
            raise AdapterLoadFailed(f"adapter {quoted(adapter.name)}: {error.message}", param="path") from None

    def unload(self, id: str) -> None:
        """Take no more requests with it."""
        self._loaded.pop(id, None)
        self._unloaded.add(id)

    def find(self, adapter: Adapter | None) -> object | None:
        """What a request's adapter is to the runner.

        An engine that was started anew loads it with the first request. Raises ModelNotFound if it was unloaded while
        the request was on its way, and Unavailable if its file has gone, say.
        """
        if adapter is None:
            return None
        if adapter.id in self._unloaded:
            raise ModelNotFound(f"adapter {quoted(adapter.name)} was unloaded", param="model")
        try:
            self.load(adapter)
        except AdapterLoadFailed as error:
            log.error("%s", error.message)  # the client is not told of files
            raise Unavailable(
                f"adapter {quoted(adapter.name)} cannot be loaded; the server's log has more", param="model"
            ) from None
        return self._loaded[adapter.id]
