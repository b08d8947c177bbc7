"""The contents of a hub's repository at one commit, and the files in it that form a model."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath, PureWindowsPath

from genai_server.errors import PullFailed
from genai_server.quoted_values import quoted

MODEL_CONFIG = "genai_config.json"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
# The files that Transformers and onnxruntime-genai's builder read from a repository with PyTorch weights.
_SOURCE = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.tiktoken")
_SOURCE_CONFIG = "config.json"
_MOST_SHOWN = 20
_GIB = 1024**3


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository."""

    path: str
    # In bytes.
    size: int
    # `sha256:…` of the content, or `git:…` of git's blob.
    digest: str


@dataclass(frozen=True)
class Repository:
    """A repository's files at one commit."""

    name: str
    commit: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True)
class Selection:
    """The files that form one directory."""

    # The folder in the repository that contains them; "" for its root.
    folder: str
    # By their names in the directory.
    files: dict[str, RemoteFile]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files.values())


def is_repository_name(text: str) -> bool:
    """Whether the text has the form of a repository's name: `OWNER/NAME`, or `NAME` for a few old ones."""
    return _NAME.fullmatch(text) is not None


def select_model(repository: Repository, include: Sequence[str] = ()) -> Selection:
    """The files of the only onnxruntime-genai model among those that match the patterns, or among all.

    Raises PullFailed if there is none, or if there are several.
    """
    chosen = [file for file in repository.files if not include or _matches(file.path, include)]
    if not chosen:
        raise PullFailed(f"no file of {repository.name} matches --include {' '.join(include)}")
    folders = sorted({_folder(file.path) for file in chosen if PurePosixPath(file.path).name == MODEL_CONFIG})
    if not folders:
        raise PullFailed(_no_model(repository, include))
    if len(folders) > 1 and "" not in folders:
        raise PullFailed(_choice(repository, chosen, folders))
    folder = folders[0]
    others = [other for other in folders if other != folder]
    return _selection(folder, [file for file in _below(folder, chosen) if not _is_below(file.path, others)])


def select_source(repository: Repository) -> Selection:
    """The top-level files of a repository that a model can be built from. Raises PullFailed if it has no such model."""
    top = [file for file in repository.files if "/" not in file.path]
    if not any(file.path == _SOURCE_CONFIG for file in top):
        raise PullFailed(f"{repository.name} has no {_SOURCE_CONFIG}: there is nothing to build a model from")
    return _selection("", [file for file in top if _matches(file.path, _SOURCE)])


def _selection(folder: str, files: Iterable[RemoteFile]) -> Selection:
    start = len(folder) + 1 if folder else 0
    named = {file.path[start:]: file for file in files if not PurePosixPath(file.path).name.startswith(".")}
    for name in named:
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive:
            raise PullFailed(f"a file of the repository would be written outside the directory: {quoted(name)}")
    return Selection(folder, named)


def _no_model(repository: Repository, include: Sequence[str]) -> str:
    where = f"no {MODEL_CONFIG} among the files that --include names" if include else f"no {MODEL_CONFIG}"
    remedy = "name a folder that has one" if include else f"genai-server export {repository.name} builds one"
    return f"{repository.name} has no onnxruntime-genai model ({where}); {remedy}"


def _choice(repository: Repository, files: Sequence[RemoteFile], folders: Sequence[str]) -> str:
    lines = [f"{repository.name} has several models; choose one with --include:"]
    for folder in folders[:_MOST_SHOWN]:
        size = sum(file.size for file in _below(folder, files))
        lines.append(f'  --include "{folder}/*"  ({size / _GIB:.2f} GiB)')
    if len(folders) > _MOST_SHOWN:
        lines.append(f"  and {len(folders) - _MOST_SHOWN} more")
    return "\n".join(lines)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Match as huggingface_hub does: a pattern that ends in a slash stands for everything below it."""
    return any(fnmatchcase(path, pattern + "*" if pattern.endswith("/") else pattern) for pattern in patterns)


def _folder(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent


def _below(folder: str, files: Iterable[RemoteFile]) -> list[RemoteFile]:
    return [file for file in files if not folder or file.path.startswith(folder + "/")]


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(folder + "/") for folder in folders)
