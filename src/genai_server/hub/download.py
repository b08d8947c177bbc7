"""Fetches the files of a selection into a folder beside the directory that they shall be, one by one, each checked.

A file has its own name only once its hash is right. Until then it is `NAME.HASH.partial`, which a later pull goes on
with.
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

_MIB = 1024 * 1024
_HASH_LENGTH = 12


def download(hub: Hub, repository: Repository, selection: Selection, folder: Path, tell: Callable[[str], None]) -> None:
    """Have all files of the selection in the folder, and nothing else; what is right already is kept.

    Raises PullFailed, and leaves what has come for the next attempt.
    """
    with _disk_told_plainly(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_strangers(folder, selection)
        missing = {name: file for name, file in selection.files.items() if not _is_there(folder / name, file)}
        _check_space(folder, missing)
        for number, (name, file) in enumerate(selection.files.items(), 1):
            if name in missing:
                tell(f"[{number}/{len(selection.files)}] {name}  {file.size / _MIB:.1f} MiB")
                _fetch(hub, repository, file, folder / name)


def _fetch(hub: Hub, repository: Repository, file: RemoteFile, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target, file)
    if partial.exists() and partial.stat().st_size > file.size:
        partial.unlink()
    # What an earlier attempt has left may be broken; what came whole just now is what the hub has.
    for _ in range(2 if partial.exists() else 1):
        hub.fetch(repository, file, partial)
        if has_digest(partial, file.digest):
            partial.replace(target)
            return
        partial.unlink()
    raise PullFailed(
        f"{file.path} came with another hash than the hub tells ({file.digest}); it was thrown away: try again, "
        "and if it stays so, the hub or a proxy before it is broken"
    )


def _partial(target: Path, file: RemoteFile) -> Path:
    """Named by the hash, so that no other revision's file is gone on with."""
    return target.with_name(f"{target.name}.{file.digest.partition(':')[2][:_HASH_LENGTH]}.partial")


def _is_there(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and has_digest(path, file.digest)


def _remove_strangers(folder: Path, selection: Selection) -> None:
    """What an attempt at another revision or selection has left."""
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
        raise PullFailed(f"{need / _MIB:.0f} MiB are to come, and {folder} has {free / _MIB:.0f} MiB free")


@contextmanager
def _disk_told_plainly(folder: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # of the output, which no disk is
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            why = f"the disk of {folder} is full; what has come is kept: make room and pull again"
        else:
            why = f"{error.filename or folder}: {(error.strerror or str(error)).splitlines()[0]}"
        raise PullFailed(why) from None
