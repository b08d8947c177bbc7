"""Types for the models in GENAI_MODELS_DIR and for those that can be downloaded from a hub. `cli/serve/loaders.py`
implements the functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PullProgress:
    """Download progress of a file."""

    name: str
    # `sha256:…` or `git:…`.
    digest: str
    # In bytes.
    total: int
    completed: int


# Downloads the model in a folder of a repository ("" for its only model) and returns its directory. Calls the callback
# with progress; an exception raised there stops the download. Blocks. Raises PullFailed. `cli/serve/loaders.py` passes
# in the implementation.
PullModel = Callable[[str, str, Callable[[PullProgress], None]], Path]


@dataclass(frozen=True)
class Variant:
    """One of the models in a repository of a hub, such as the variant for one kind of device."""

    # "" for the repository's root.
    folder: str
    # In bytes.
    size: int
    # Whether it is the best variant for the server's device, by its folder's name; None where that names no device.
    for_device: bool | None
    # Bytes that its weights take once they are loaded, beside its context.
    memory: int


@dataclass(frozen=True)
class StoredModel:
    """A model directory in GENAI_MODELS_DIR."""

    path: Path
    # In bytes.
    size: int
    # The repository or directory that it comes from, with `:FOLDER` for one of several models; "" if unknown.
    source: str


@dataclass(frozen=True)
class ModelStore:
    """Functions to list the models in GENAI_MODELS_DIR, and to download others from a hub. All functions block."""

    directory: Path
    pull: PullModel
    # The models in a repository. Raises PullFailed.
    variants: Callable[[str], list[Variant]]
    # Bytes of the memory in which models are loaded; None for a device with a memory of its own.
    memory: int | None
    # Keyed by name.
    stored: Callable[[], list[StoredModel]]
