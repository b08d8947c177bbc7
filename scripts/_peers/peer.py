"""A peer: how it is built, and how it is served."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from _load.server import HOST, DoesNotStart, clean_environment, free_port, is_answered, running

from .environment import PeerUnavailable, end_of

THREADS = 2
# Maximum number of requests that a server runs at once.
SLOTS = 16
# Maximum number of tokens of a prompt and its answer.
MAX_LENGTH = 4096
_SECONDS_TO_START = 600.0


@dataclass(frozen=True)
class Model:
    """The same weights in two forms."""

    # The form for genai-server.
    onnx: Path
    # The form for Hugging Face's transformers, which peers convert to their own. None for genai-server alone.
    checkpoint: Path | None
    # The GGUF file of which genai-server's form was made, which llama.cpp serves as it is. None for other sources.
    gguf: Path | None = None
    # Whether the weights are those of a trained model, so that quality counts.
    real: bool = False


@dataclass(frozen=True)
class Launch:
    """How a server is started."""

    # Returns the command for a port.
    command: Callable[[int], list[str]]
    # Shown in the table: version, weights, and keys and values.
    version: str
    weights: str
    environment: Mapping[str, str] = field(default_factory=dict)
    # A path that answers 200 once the model is loaded.
    ready_path: str = "/health"
    # Returns the perplexity of the server at an URL; None if it has no way to tell. Raises PeerUnavailable.
    perplexity: Callable[[str], float] | None = None


# Builds a peer in a folder, unless that is done. Raises PeerUnavailable.
Prepare = Callable[[Path, Model], Launch]


@contextmanager
def served(launch: Launch, folder: Path) -> Iterator[str]:
    """Start the server on a free loopback port, yield its URL, and stop it at the end. Its log goes to the folder.

    Raises PeerUnavailable, with the end of the log, if it does not start.
    """
    port, log = free_port(), folder / "server.log"
    url = f"http://{HOST}:{port}"
    environment = clean_environment() | dict(launch.environment)

    def is_up() -> bool:
        return is_answered(url + launch.ready_path)

    try:
        with running(launch.command(port), environment, log, is_up, _SECONDS_TO_START):
            yield url
    except DoesNotStart:
        raise PeerUnavailable(f"its server does not start: {end_of(log)}") from None


def checkpoint_of(model: Model) -> Path:
    """The checkpoint. Raises ValueError if none was given."""
    if model.checkpoint is None:
        raise ValueError("this peer needs --checkpoint")
    return model.checkpoint


def made_from(model: Model) -> str:
    """Part of the name of what a peer makes from the checkpoint: another one for each, and for each of its changes.

    Raises ValueError if none was given.
    """
    checkpoint = checkpoint_of(model).resolve()
    changed = max(file.stat().st_mtime_ns for file in checkpoint.iterdir())
    return f"{checkpoint.name}-{hashlib.sha256(f'{checkpoint} {changed}'.encode()).hexdigest()[:8]}"
