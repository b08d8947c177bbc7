"""Downloads the files of a model one by one into a folder next to the model's final directory, and checks each file.

A file is named `NAME.HASH.partial` until all its bytes have arrived and its hash is correct. The next pull of the same
file continues a partial file.
"""

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from genai_server.errors import PullFailed, escaped
from genai_server.hub.client import Hub
from genai_server.hub.repository import RemoteFile, Repository, Selection
from genai_server.hub.store import has_digest

_MIB = 1024 * 1024
_HASH_LENGTH = 12
# Called with a file and the number of its bytes that are here: once for each file, and then as they arrive.
Watch = Callable[[RemoteFile, int], None]


def download(
    hub: Hub, repository: Repository, selection: Selection, folder: Path, watch: Watch = lambda file, size: None
) -> None:
    """Download those files of a selection that `folder` lacks or has with other contents, and remove all files that are
    not in the selection.

    `watch` is called with a file and the number of its bytes that are in the folder, once at the start and then as
    bytes arrive; an exception from `watch` ends the download. Raises PullFailed if a file cannot be downloaded. Partial
    files are kept for the next attempt.
    """
    with _translated_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_other_files(folder, selection)
        missing = {name: file for name, file in selection.files.items() if not _is_there(folder / name, file)}
        _check_space(folder, missing)
        for name, file in selection.files.items():
            watch(file, _size(_partial(folder / name, file)) if name in missing else file.size)
        for name, file in missing.items():
            _fetch(hub, repository, file, folder / name, watch)


def _fetch(hub: Hub, repository: Repository, file: RemoteFile, target: Path, watch: Watch) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target, file)
    if _size(partial) > file.size:
        partial.unlink()
    # A wrong hash may be due to the bytes of an earlier attempt. If all bytes are new, the hub is at fault.
    for _ in range(2 if partial.exists() else 1):
        hub.fetch(repository, file, partial, lambda size: watch(file, size))
        if has_digest(partial, file.digest):
            partial.replace(target)
            return
        partial.unlink()
    raise PullFailed(
        f"{file.shown} does not have the hash that the hub lists ({file.digest}) and was removed; try again, "
        "and if that does not help, the hub or a proxy before it is broken"
    )


def _partial(target: Path, file: RemoteFile) -> Path:
    """Return the path at which the bytes of a file are stored until it is complete. `target` is the path of the
    complete file.

    The name contains the file's hash, so that bytes of another revision are never continued.
    """
    return target.with_name(f"{target.name}.{file.digest.partition(':')[2][:_HASH_LENGTH]}.partial")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_there(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and has_digest(path, file.digest)


def _remove_other_files(folder: Path, selection: Selection) -> None:
    """Remove the files in a folder that do not belong to the selection, such as those of an attempt with another
    revision.
    """
    ours = {folder / name for name in selection.files}
    ours |= {_partial(folder / name, file) for name, file in selection.files.items()}
    for path in [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]:
        if path not in ours:
            path.unlink()


def _check_space(folder: Path, missing: dict[str, RemoteFile]) -> None:
    have = sum(_size(_partial(folder / name, file)) for name, file in missing.items())
    need = sum(file.size for file in missing.values()) - have
    free = shutil.disk_usage(folder).free
    if need > free:
        raise PullFailed(f"the download needs {need / _MIB:.0f} MiB, and {folder} has {free / _MIB:.0f} MiB free")


@contextmanager
def _translated_disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader of the output has exited; the disk is fine
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            why = f"the disk of {folder} is full; free some space, and pull again to continue"
        else:
            why = f"{escaped(str(error.filename or folder))}: {(error.strerror or str(error)).splitlines()[0]}"
        raise PullFailed(why) from None
