"""Reads the size and parts of the configuration of a model from its directory."""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from genai_server.messages.server_status import ModelStatus

_CONFIG = "genai_config.json"


@dataclass(frozen=True)
class ModelFiles:
    """What can be read from the directory of a model without loading it: size, digest, time of the last change, model
    family and context length.
    """

    # In bytes.
    size: int
    # Changes with the files' names, sizes and times.
    digest: str
    modified: datetime
    # The model family, such as qwen2; "" if unknown.
    family: str
    # In tokens; None if unknown.
    context_length: int | None


def read_files(status: ModelStatus) -> ModelFiles:
    """Read the size, dates and configuration of the model's directory. Blocks. A missing directory counts as empty."""
    try:
        stats = {path.name: path.stat() for path in Path(status.path).iterdir() if path.is_file()}
    except (OSError, ValueError):  # a scripted device needs no directory
        stats = {}
    listed = sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items())
    digest = hashlib.sha256(json.dumps([status.name, *listed]).encode()).hexdigest()
    modified = max((stat.st_mtime for stat in stats.values()), default=status.created)
    size = sum(stat.st_size for stat in stats.values())
    config = _config(Path(status.path) / _CONFIG)
    family, length = config.get("type"), config.get("context_length")
    return ModelFiles(
        size,
        digest,
        datetime.fromtimestamp(modified, UTC),
        family if isinstance(family, str) else "",
        length if type(length) is int and length > 0 else None,
    )


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
