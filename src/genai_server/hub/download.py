"""Downloads the files of a selection into a folder beside their final directory, one by one, and checks each.

A file gets its own name only after its hash was checked. Until then it is `NAME.HASH.partial`, which a later pull
continues.
"""

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from genai_server.errors import PullFailed
from genai_server.hub.client import Hub
from genai_server.hub.digest import has_digest
from genai_server.hub.repository import RemoteFile, Repository, Selection
from genai_server.quoted_values import escaped

_MIB = 1024 * 1024
_HASH_LENGTH = 12


# Called with a file and how many of its bytes have come.
Watch = Callable[[RemoteFile, int], None]


def download(
    hub: Hub,
    repository: Repository,
    selection: Selection,
    folder: Path,
    tell: Callable[[str], None],
    watch: Watch | None = None,
) -> None:
    """Make the folder hold exactly the files of the selection; correct files are kept.

    What `watch` raises ends the download. Raises PullFailed and keeps the partial files for the next attempt.
    """
    with _disk_told_plainly(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_strangers(folder, selection)
        missing = {name: file for name, file in selection.files.items() if not _is_there(folder / name, file)}
        _check_space(folder, missing)
        for number, (name, file) in enumerate(selection.files.items(), 1):
            if name in missing:
                tell(f"[{number}/{len(selection.files)}] {escaped(name)}  {file.size / _MIB:.1f} MiB")
                _fetch(hub, repository, file, folder / name, watch)


def _fetch(hub: Hub, repository: Repository, file: RemoteFile, target: Path, watch: Watch | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target, file)
    if partial.exists() and partial.stat().st_size > file.size:
        partial.unlink()
    # A wrong hash may come from the rest of an earlier attempt. If all bytes came just now, the hub is wrong.
    for _ in range(2 if partial.exists() else 1):
        hub.fetch(repository, file, partial, None if watch is None else lambda size: watch(file, size))
        if has_digest(partial, file.digest):
            partial.replace(target)
            return
        partial.unlink()
    raise PullFailed(
        f"{file.shown} does not have the hash that the hub tells ({file.digest}) and was removed; try again, "
        "and if it stays so, the hub or a proxy before it is broken"
    )


def _partial(target: Path, file: RemoteFile) -> Path:
    """The partial file. Its name contains the hash, so that no other revision continues it."""
    return target.with_name(f"{target.name}.{file.digest.partition(':')[2][:_HASH_LENGTH]}.partial")


def _is_there(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and has_digest(path, file.digest)


def _remove_strangers(folder: Path, selection: Selection) -> None:
    """Remove what an attempt with another revision or selection has left."""
    ours = {folder / name for name in selection.files}
    ours |= {_partial(folder / name, file) for name, file in selection.files.items()}
    for path in [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]:
        if path not in ours:
            path.unlink()


def _check_space(folder: Path, missing: dict[str, RemoteFile]) -> None:
    partials = [_partial(folder / name, file) for name, file in missing.items()]
    have = sum(partial.stat().st_size for partial in partials if partial.exists())
    need = sum(file.size for file in missing.values()) - have
    free = shutil.disk_usage(folder).free
    if need > free:
        raise PullFailed(f"{need / _MIB:.0f} MiB are to be downloaded, and {folder} has {free / _MIB:.0f} MiB free")


@contextmanager
def _disk_told_plainly(folder: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader of the output has gone; the disk is fine
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            why = f"the disk of {folder} is full; free some space, and pull again to continue"
        else:
            why = f"{escaped(str(error.filename or folder))}: {(error.strerror or str(error)).splitlines()[0]}"
        raise PullFailed(why) from None
