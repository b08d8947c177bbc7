"""Access to a hub through the library huggingface_hub: `Hub` lists a repository's files, and `download` downloads
selected files, one by one, into a folder next to their final directory.

`snapshot_download` of that library is not used, because it discards a partial file after a broken connection and
compares no hashes (docs/decisions/0018-a-pull-keeps-what-has-come.md). Here a file gets its final name after its hash
was checked. Until then it is `NAME.HASH.partial`; a later pull continues it.
"""

import errno
import importlib.metadata
import importlib.util
import io
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from genai_server.errors import ConfigurationError, PullFailed, escaped, in_one_line, quoted
from genai_server.hub.repository import RemoteFile, Repository, Selection
from genai_server.hub.store import has_digest
from genai_server.system.installation import this_installation

_MIN_VERSION = (2, 4)
# Prefix of an OSError's text.
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")


class Hub:
    """A client of a model hub such as Hugging Face: lists the files of a repository and downloads them. `endpoint` is
    the hub's address, by default the one in the environment variable HF_ENDPOINT or else Hugging Face's.

    Requests use the access token `token`, or else that of huggingface_hub (HF_TOKEN, `hf auth login`). The constructor
    raises ConfigurationError if huggingface_hub is missing or too old.
    """

    def __init__(self, token: str | None = None, endpoint: str | None = None) -> None:
        _check_installed()
        from huggingface_hub import constants

        self.endpoint = endpoint or constants.ENDPOINT
        self._token = token or None

    def repository(self, name: str, revision: str | None) -> Repository:
        """Ask the hub for the files of the model repository `name` at one commit, and return them. `revision` is a
        branch, tag or commit; None stands for the default branch.

        Raises PullFailed if the hub cannot be reached or refuses the request.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        api = HfApi(endpoint=self.endpoint, token=self._token)
        with self._translated_errors(name, revision):
            info = api.model_info(name, revision=revision)
            commit = info.sha
            if commit is None:
                raise PullFailed(f"{self.endpoint} does not report the commit of {name}")
            tree = api.list_repo_tree(name, recursive=True, revision=commit)
            files = tuple(self._remote_file(name, entry) for entry in tree if isinstance(entry, RepoFile))
        bases = getattr(info.card_data, "base_model", None) or ""
        base = bases if isinstance(bases, str) else str(bases[0])
        return Repository(name, commit, files, base)

    def _remote_file(self, name: str, entry: Any) -> RemoteFile:
        """Return `entry`, an entry of the hub's list of files of the repository `name`, as a RemoteFile. Raises
        PullFailed if its path or size is invalid.
        """
        path, size = entry.path, entry.size
        if not isinstance(path, str) or not path or "\0" in path:
            raise PullFailed(f"{self.endpoint} lists {quoted(path)} among the files of {name}, which cannot be a file")
        if type(size) is not int or size < 0:
            raise PullFailed(f"{self.endpoint} lists {quoted(path)} of {name} with {quoted(size)} as its size")
        return RemoteFile(path, size, _digest(entry))

    def fetch(
        self, repository: Repository, file: RemoteFile, partial: Path, watch: Callable[[int], None] | None = None
    ) -> None:
        """Download a file of a repository into the local file `partial`: only the bytes that `partial` lacks, which are
        appended. After a broken connection the download is continued, a few times.

        `watch` is called with the size of `partial` in bytes whenever it has grown; an exception from `watch` ends the
        download. Raises PullFailed if all attempts fail or the hub sends more bytes than the file has, and OSError if
        writing fails.
        """
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers, disable_progress_bars

        disable_progress_bars()
        # No compression: a range of bytes could not be requested otherwise.
        headers = build_hf_headers(token=self._token) | {"accept-encoding": "identity"}
        url = hf_hub_url(repository.name, file.path, revision=repository.commit, endpoint=self.endpoint)
        with _ProgressFile(partial, file, watch) as out, self._translated_errors(repository.name, repository.commit):
            http_get(url, out, resume_size=out.tell(), headers=headers, expected_size=file.size)

    @contextmanager
    def _translated_errors(self, name: str, revision: str | None) -> Iterator[None]:
        from httpx2 import HTTPError
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        try:
            yield
        except GatedRepoError:
            raise PullFailed(
                f"{name} is gated: agree to its terms on {self.endpoint}/{name}, and give a token of that account "
                "with --token or HF_TOKEN"
            ) from None
        except RepositoryNotFoundError as error:
            raise PullFailed(self._not_found(name, error)) from None
        except RevisionNotFoundError:
            raise PullFailed(f"{name} has no revision {quoted(revision)}") from None
        except HFValidationError as error:
            raise PullFailed(f"{name}: {error}") from None
        except OfflineModeIsEnabled:
            raise PullFailed("HF_HUB_OFFLINE is set, so nothing can be fetched") from None
        except HfHubHTTPError as error:
            if error.response.status_code == 401:
                raise PullFailed(self._token_refused()) from None
            raise PullFailed(f"{self.endpoint} answers {error.response.status_code}: {_first_line(error)}") from None
        except (KeyError, TypeError, ValueError) as error:  # the hub sends another form
            raise PullFailed(f"{self.endpoint} sends an invalid response: {in_one_line(error)}") from None
        except HTTPError as error:
            raise PullFailed(
                f"{self.endpoint} cannot be reached, or the connection broke: {_first_line(error)}"
            ) from None

    def _not_found(self, name: str, error: OSError) -> str:
        from huggingface_hub import get_token

        if getattr(getattr(error, "response", None), "status_code", None) == 401 and (self._token or get_token()):
            return f"{self._token_refused()}, or there is no {name}"
        return f"there is no {name} on {self.endpoint}, or it is private and needs a token (--token or HF_TOKEN)"

    def _token_refused(self) -> str:
        return f"{self.endpoint} does not accept the token ({'--token' if self._token else 'HF_TOKEN'})"


class _ProgressFile(io.BufferedWriter):
    """The local file to which a download is appended. It calls `watch`, if there is one, with its size in bytes after
    each write.

    `write` raises PullFailed if the file becomes larger than the hub lists, because a response without a length may be
    endless.
    """

    def __init__(self, path: Path, file: RemoteFile, watch: Callable[[int], None] | None) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self._file = file
        self._watch = watch

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._file.size:
            raise PullFailed(f"{self._file.shown} is longer than the {self._file.size} bytes that the hub lists")
        written = super().write(data)
        if self._watch is not None:
            self._watch(self.tell())
        return written


def _digest(file: object) -> str:
    lfs = getattr(file, "lfs", None)
    return f"sha256:{lfs.sha256}" if lfs is not None else f"git:{getattr(file, 'blob_id', '')}"


def _first_line(error: Exception) -> str:
    text = _ERRNO.sub("", str(error).strip())
    return escaped(next(iter(text.splitlines()), "")) or type(error).__name__


def _check_installed() -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigurationError(
            f"huggingface_hub is not installed; install it: {this_installation().extra_command('hub')}"
        )
    version = importlib.metadata.version("huggingface_hub")
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _MIN_VERSION:
        remedy = this_installation().extra_command("hub")
        raise ConfigurationError(f"huggingface_hub {version} is too old; install it: {remedy}")


_MIB = 1024 * 1024
_HASH_LENGTH = 12
# Called with a file and the number of its bytes that are here: once for each file, and then as they arrive.
Watch = Callable[[RemoteFile, int], None]


def download(
    hub: Hub, repository: Repository, selection: Selection, folder: Path, watch: Watch = lambda file, size: None
) -> None:
    """Download into `folder` those files of a selection that the folder lacks or has with other contents, and remove
    all files in it that are not in the selection.

    `watch` is called with a file and the number of its bytes that are in the folder, once at the start and then
    whenever bytes arrive; an exception from `watch` ends the download. Raises PullFailed if a file cannot be
    downloaded, has a wrong hash or does not fit on the disk. Partial files are kept, so that the next attempt continues
    them.
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
    """Remove all files in a folder, also partial ones, that do not belong to the selection, such as those of an earlier
    attempt with another revision.
    """
    expected = {folder / name for name in selection.files}
    expected |= {_partial(folder / name, file) for name, file in selection.files.items()}
    for path in [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]:
        if path not in expected:
            path.unlink()


def _check_space(folder: Path, missing: dict[str, RemoteFile]) -> None:
    present = sum(_size(_partial(folder / name, file)) for name, file in missing.items())
    needed = sum(file.size for file in missing.values()) - present
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PullFailed(f"the download needs {needed / _MIB:.0f} MiB, and {folder} has {free / _MIB:.0f} MiB free")


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
