"""What is known of a peer: how it is built, and how it is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

THREADS = 2
# Most requests that a server runs at once.
SLOTS = 16
# Most tokens of a prompt and its answer.
MAX_LENGTH = 4096


@dataclass(frozen=True)
class Model:
    """The same weights in two forms."""

    # For genai-server.
    onnx: Path
    # As Hugging Face's transformers read it; the peers make their own forms of it. None for genai-server alone.
    checkpoint: Path | None


@dataclass(frozen=True)
class Launch:
    """How a server is started."""

    # Gives the command for a port.
    command: Callable[[int], list[str]]
    # In the table: version, weights and keys and values.
    version: str
    weights: str
    environment: Mapping[str, str] = field(default_factory=dict)
    # Answers 200 as soon as the model is loaded.
    ready_path: str = "/health"


# Builds a peer in a folder, unless that is done. Raises PeerUnavailable.
Prepare = Callable[[Path, Model], Launch]


def checkpoint_of(model: Model) -> Path:
    """The checkpoint. Raises ValueError if none was given."""
    if model.checkpoint is None:
        raise ValueError("this peer needs --checkpoint")
    return model.checkpoint
