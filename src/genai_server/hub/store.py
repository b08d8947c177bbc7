"""The folder of models (GENAI_MODELS_DIR), in which each model has a directory: listing (`models_in`), removing
(`remove`) and installing models (`staging`, `install`). The directory of a downloaded or built model has a file about
its origin (`Origin`).

A directory is prepared in a hidden folder next to it, which is renamed once it is complete and checked.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from genai_server.errors import ConfigurationError, PullFailed, quoted
from genai_server.model_files.config_files import GENAI_CONFIG
from genai_server.model_files.pooling_model import Task, task_of

ORIGIN = ".genai-server.json"
# Bytes of a file that are hashed at once.
_PIECE = 4 * 1024 * 1024


class Origin(msgspec.Struct, frozen=True):
    """Where the files of a model directory come from: the repository and commit, or how the model was built, and the
    digest of each downloaded file. It is stored as JSON in the directory's file ORIGIN.
    """

    # The repository or directory.
    source: str
    # The commit of the repository; "" for a directory.
    revision: str = ""
    folder: str = ""
    # The repository that the user named as the model's original.
    original: str = ""
    # A description of how the model was built; "" if it was not.
    built: str = ""
    # Digests of the fetched files; empty for a built model.
    files: dict[str, str] = msgspec.field(default_factory=dict)
    # Names of the files that were fetched from the original's repository.
    added: list[str] = []


def place_of(models: Path, source: str) -> Path:
    """Return the path of the directory for a model in `models`, the folder of models. It is named after the last part
    of `source`, which is the name of a repository or the path of a folder.
    """
    return models / source.rstrip("/").rpartition("/")[2]


def staging(directory: Path, purpose: str = "pull") -> Path:
    """Return the path of a hidden folder next to a model directory, in which files for the directory are prepared.
    `purpose`, such as "pull" or "export", says what the folder is for, and is the end of its name. Nothing is created.
    """
    return directory.parent / f".{directory.name}.{purpose}"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a model directory during a `with` block, so that no other process prepares or removes the
    directory.

    Raises PullFailed if another process holds the lock, and ConfigurationError if the lock file cannot be created.
    """
    path = directory.parent / f".{directory.name}.lock"
    lock = FileLock(path, mode=0o600)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise PullFailed(f"another process is working on {directory}") from None
    except OSError as error:
        raise ConfigurationError(f"{error.filename or directory}: {error.strerror}") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def seed(folder: Path, directory: Path, is_taken: Callable[[str], bool] = lambda name: True) -> None:
    """Copy to `folder`, in which a new version of a model directory is prepared, those files of the existing model
    directory `directory` that it lacks, as hard links where possible.

    `is_taken` gets the name of each such file and returns whether to copy it. Raises PullFailed if copying fails.
    """
    try:
        for path in [path for path in directory.rglob("*") if path.is_file()]:
            name = path.relative_to(directory)
            target = folder / name
            if not target.exists() and is_taken(name.as_posix()):
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(path, target)
    except OSError as error:
        raise PullFailed(f"{error.filename or folder}: {error.strerror}") from None


def keep(folder: Path, directory: Path, former: Origin) -> None:
    """Copy to `folder`, in which a new version of the model directory `directory` is prepared, those files of the
    existing directory that the user has added. `former` is the existing directory's origin, which lists the files that
    were downloaded. Raises PullFailed if copying fails.
    """
    fetched = {*former.files, *former.added, ORIGIN}
    seed(folder, directory, lambda name: name not in fetched)


def install(folder: Path, directory: Path, origin: Origin) -> None:
    """Make the prepared folder `folder` the model directory `directory`: write `origin` into its file ORIGIN, rename
    it, and remove the former directory.

    Raises PullFailed if writing or renaming fails.
    """
    former = staging(directory, "former")
    try:
        note = folder / ORIGIN
        note.unlink(missing_ok=True)  # it may be a hard link to the former note
        note.write_bytes(msgspec.json.format(msgspec.json.encode(origin), indent=2) + b"\n")
        if directory.exists():
            directory.rename(former)
        folder.rename(directory)
        if former.exists():
            shutil.rmtree(former)
    except OSError as error:
        raise PullFailed(f"{directory}: {error.strerror}") from None


def read_origin(directory: Path) -> Origin | None:
    """Return the contents of the file ORIGIN in a model directory; None if it is missing or cannot be read."""
    try:
        return msgspec.json.decode((directory / ORIGIN).read_bytes(), type=Origin)
    except (OSError, msgspec.DecodeError):
        return None


def changed_files(directory: Path, origin: Origin) -> list[str]:
    """Return the names of those downloaded files of a model directory that are missing or no longer have the digest
    that `origin` has recorded.
    """
    return [name for name, digest in origin.files.items() if not _is_as_fetched(directory / name, digest)]


def models_in(models: Path) -> list[Path]:
    """Return the model directories in the folder of models, sorted by name."""
    return sorted(path for path in models.glob("[!.]*") if _is_model(path))


def unfinished_in(models: Path) -> list[Path]:
    """Return the hidden folders of downloads in the folder `models` that were interrupted (of `pull` or `export`),
    which the next attempt continues.
    """
    return sorted(path for path in models.glob(".*.*") if path.is_dir() and path.suffix in (".pull", ".source"))


def remove(models: Path, name: str) -> int:
    """Delete the model named `name`, and what interrupted downloads of it have left, from the folder `models`. Returns
    the number of bytes freed.

    Raises ConfigurationError if there is no such model, or if it cannot be removed.
    """
    directory = models / name
    if directory.parent != models or name.startswith("."):
        raise ConfigurationError(f"{quoted(name)} is not the name of a model in {models}")
    folders = [path for path in (staging(directory), staging(directory, "source")) if path.is_dir()]
    if directory.is_symlink() or (directory.is_dir() and not _is_model(directory)):
        raise ConfigurationError(f"{directory} is not a model directory; remove it yourself")
    if directory.is_dir():
        folders.append(directory)
    if not folders:
        names = ", ".join(path.name for path in models_in(models)) or "none"
        raise ConfigurationError(f"there is no model {quoted(name)} in {models}; it has: {names}")
    size = sum(size_of(path) for path in folders)
    try:
        for path in folders:
            shutil.rmtree(path)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from None
    return size


def size_of(directory: Path) -> int:
    """Return the total size in bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _link(path: Path, target: Path) -> None:
    try:
        target.hardlink_to(path)
    except OSError:
        shutil.copy2(path, target)


def _is_model(path: Path) -> bool:
    return (path / GENAI_CONFIG).is_file() or (path / ORIGIN).is_file() or task_of(path) is not Task.GENERATE


def _is_as_fetched(path: Path, digest: str) -> bool:
    try:
        return has_digest(path, digest)
    except OSError:
        return False


def has_digest(path: Path, digest: str) -> bool:
    """Whether the contents of a file have the digest `digest`: `sha256:HEX`, or `git:HEX` (the hash that git gives a
    blob). Raises OSError if the file cannot be read.
    """
    kind, _, expected = digest.partition(":")
    return digest_of(path, kind).partition(":")[2] == expected.lower()


def digest_of(path: Path, kind: str) -> str:
    """Return the digest of the contents of a file as `KIND:HEX`. `kind` is `sha256`, or `git` for the hash that git
    gives a blob. Raises OSError if the file cannot be read.
    """
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return f"{kind}:{digest.hexdigest()}"
