"""GGUF files as sources of models: which one is meant, and its unpacking into a directory in Hugging Face's format."""

import os
from collections.abc import Callable
from pathlib import Path

from genai_server.errors import ConfigurationError, ExportFailed, escaped
from genai_server.hub.builder import run_logged
from genai_server.hub.client import Hub
from genai_server.hub.repository import RemoteFile, Repository, name_of

SUFFIX = ".gguf"
LOG = "unpack.log"
_PROGRAM = Path(__file__).with_name("unpack_gguf.py")
_REFUSED = "refused: "
_WEIGHTS = ".safetensors"
# Bytes that have everything but the weights of any published file.
_BEGINNING = 64 * 1024 * 1024


def find_gguf(directory: Path) -> Path | None:
    """The directory's only GGUF file; None if it has none, or weights of PyTorch. Raises ConfigurationError."""
    found = sorted(directory.glob(f"*{SUFFIX}"))
    if not found or any(directory.glob(f"*{_WEIGHTS}")):
        return None
    if len(found) > 1:
        names = "\n".join(f"  {escaped(str(path))}" for path in found)
        raise ConfigurationError(f"{directory} has several GGUF files; name one of them:\n{names}")
    return found[0]


def unpack(
    path: Path,
    target: Path,
    python: Path,
    environment: dict[str, str],
    tell: Callable[[str], None],
    *,
    bits: int | None = None,
) -> None:
    """Write what a GGUF file describes, and its weights in 16 or 32 bits, into a new directory, and report each step.

    Raises ConfigurationError if the file cannot be built, and ExportFailed with the program's last lines.
    """
    target.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-u", str(_PROGRAM), str(path), str(target), *([str(bits)] if bits else [])]
    status, last = run_logged(command, environment | {"TQDM_DISABLE": "1"}, target / LOG, tell)
    reasons = [line.removeprefix(_REFUSED) for line in last if line.startswith(_REFUSED)]
    if reasons:
        raise ConfigurationError(f"{escaped(path.name)} cannot be built: {escaped(reasons[-1])}")
    if status:
        raise ExportFailed("\n".join([f"unpacking {escaped(path.name)} failed (status {status})", *last]))
    (target / LOG).unlink()


def fetch_beginning(hub: Hub, repository: Repository, file: RemoteFile, folder: Path) -> Path:
    """Fetch the part of a GGUF file that describes the model; zeros stand for the weights. Raises PullFailed."""
    path = folder / name_of(file)

    def stop(size: int) -> None:
        if size >= _BEGINNING:
            raise _EnoughFetched

    try:
        hub.fetch(repository, file, path, stop)
    except _EnoughFetched:
        os.truncate(path, file.size)
    return path


class _EnoughFetched(Exception):
    """Ends a download early."""
