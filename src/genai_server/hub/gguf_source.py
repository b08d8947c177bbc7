"""GGUF files as sources of models that are built: finding a file in a directory (`find_gguf`), downloading its
beginning (`fetch_beginning`), and unpacking it into a directory in Hugging Face's format (`unpack`).
"""

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
    """Return the only GGUF file of a directory; None if there is none, or if the directory also has safetensors files.

    Raises ConfigurationError if there are several GGUF files.
    """
    files = sorted(directory.glob(f"*{SUFFIX}"))
    if not files or any(directory.glob(f"*{_WEIGHTS}")):
        return None
    if len(files) > 1:
        names = "\n".join(f"  {escaped(str(path))}" for path in files)
        raise ConfigurationError(f"{directory} has several GGUF files; name one of them:\n{names}")
    return files[0]


def unpack(
    path: Path,
    target: Path,
    python: Path,
    environment: dict[str, str],
    report: Callable[[str], None],
    *,
    bits: int | None = None,
) -> None:
    """Unpack the GGUF file `path` into the new directory `target` in Hugging Face's format. A program does this in the
    interpreter `python` with the variables `environment`. `report` is called with a line about each step.

    With `bits` (16 or 32) the directory contains weights of this size, otherwise only the files that describe the
    model. Raises ConfigurationError if no model can be built from the file, and ExportFailed, with the last lines of
    the output, if unpacking fails.
    """
    target.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-u", str(_PROGRAM), str(path), str(target), *([str(bits)] if bits else [])]
    status, last = run_logged(command, environment | {"TQDM_DISABLE": "1"}, target / LOG, report)
    reasons = [line.removeprefix(_REFUSED) for line in last if line.startswith(_REFUSED)]
    if reasons:
        raise ConfigurationError(f"{escaped(path.name)} cannot be built: {escaped(reasons[-1])}")
    if status:
        raise ExportFailed("\n".join([f"unpacking {escaped(path.name)} failed (status {status})", *last]))
    (target / LOG).unlink()


def fetch_beginning(hub: Hub, repository: Repository, file: RemoteFile, folder: Path) -> Path:
    """Download only the beginning of a GGUF file, which describes the model, into `folder`, so that the file can be
    checked before its weights are downloaded. Returns the path of the written file, which has the original's size, with
    zeros in place of the weights.

    Raises PullFailed if the download fails.
    """
    path = folder / name_of(file)

    def stop(size: int) -> None:
        if size >= _BEGINNING:
            raise _PrefixComplete

    try:
        hub.fetch(repository, file, path, stop)
    except _PrefixComplete:
        os.truncate(path, file.size)
    return path


class _PrefixComplete(Exception):
    """Raised while a GGUF file is being downloaded, to end the download when its beginning has arrived."""
