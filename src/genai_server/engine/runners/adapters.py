"""The LoRA adapters of one engine: each is loaded once, for all requests that use it."""

import hashlib
import logging
from pathlib import Path

from genai_server.engine.loaded_adapter import LoadedAdapter
from genai_server.engine.runners.base import Runner
from genai_server.errors import AdapterLoadFailed, ModelNotFound, Unavailable
from genai_server.messages.generation_request import Adapter
from genai_server.quoted_values import quoted

log = logging.getLogger(__name__)


class Adapters:
    """The loaded adapters of the runner whose sequences may have one, by id. Owned by the loop's thread.

    A sequence holds its adapter until it ends. So an unloaded adapter stays in memory while answers use it, and is
    freed afterwards.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._loaded: dict[str, LoadedAdapter] = {}
        self._unloaded: set[str] = set()

    def load(self, adapter: Adapter) -> None:
        """Load an adapter for requests. Raises AdapterLoadFailed."""
        if adapter.id in self._loaded:
            return
        try:
            self._loaded[adapter.id] = self._load(Path(adapter.path))
        except AdapterLoadFailed as error:
            raise AdapterLoadFailed(f"adapter {quoted(adapter.name)}: {error.message}", param="path") from None
        where = "in the batch" if self._runner.abilities.mixes else "one by one"
        log.info("adapter %s is loaded; its requests run %s", quoted(adapter.name), where)

    def _load(self, path: Path) -> LoadedAdapter:
        digest = _digest(path)
        loaded = self._runner.load_adapter(path)
        if _digest(path) != digest:  # keys and values of one content would be cached as those of another
            raise AdapterLoadFailed(f"{path} was written into while it was loaded")
        return LoadedAdapter(digest, loaded)

    def unload(self, id: str) -> None:
        """Accept no more requests for an adapter."""
        self._loaded.pop(id, None)
        self._unloaded.add(id)

    def find(self, adapter: Adapter) -> LoadedAdapter:
        """A request's adapter.

        A restarted engine loads it with the first request. Raises ModelNotFound if it was unloaded while the request
        was on its way. Raises Unavailable if it cannot be loaded, for instance because its file is gone.
        """
        if adapter.id in self._unloaded:
            raise ModelNotFound(f"adapter {quoted(adapter.name)} was unloaded", param="model")
        try:
            self.load(adapter)
        except AdapterLoadFailed as error:
            log.error("%s", error.message)  # clients must not learn file names
            raise Unavailable(
                f"adapter {quoted(adapter.name)} cannot be loaded; see the server log", param="model"
            ) from None
        return self._loaded[adapter.id]


def _digest(path: Path) -> str:
    """The SHA-256 of a file's content. Raises AdapterLoadFailed."""
    if not path.is_file():
        raise AdapterLoadFailed(f"{path} does not exist, or is not a file")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdapterLoadFailed(f"{path} cannot be read: {error.strerror}") from None
