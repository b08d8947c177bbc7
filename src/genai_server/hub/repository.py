"""The files of a hub repository at one commit (`Repository`), and functions that choose those files that form a model
(`Selection`): `select_model` to serve it, `select_source` and `select_gguf` to build from it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath, PureWindowsPath

from genai_server.errors import PullFailed, escaped, quoted
from genai_server.model_files.config_files import CONFIG, GENAI_CONFIG
from genai_server.model_files.pooling_model import MODULE_FILES, MODULES

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
# The files that Transformers and onnxruntime-genai's builder read from a repository with PyTorch weights.
_SOURCE = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.tiktoken")
_GGUF = "*.gguf"
# Files of GGUF repositories that are not models: projections of images, and statistics for quantization.
_NO_MODELS = ("mmproj*", "*imatrix*")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# The folder of a module of sentence-transformers.
_MODULE_FOLDER = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")
# Files that no model needs: the repository's page, and those of git.
_UNUSED = ("README.md", ".*")
# Files next to a repository's ONNX graphs that are not graphs.
_NEXT_TO_GRAPHS = ("*.json", "*.txt", "*.model", "*.jinja")
_GRAPHS = ("onnx/model.onnx", "model.onnx")
_GRAPH_FOLDERS = ("", "onnx")
_MAX_SHOWN = 20
# Words in the names of folders that say for which devices a model was built; for each kind of device those of models
# that it runs, the best first.
_FOR_DEVICES = {"cpu": ("cpu",), "cuda": ("cuda", "gpu"), "directml": ("directml", "dml", "gpu")}
_DEVICE_WORDS = frozenset(
    ("cpu", "cuda", "gpu", "directml", "dml", "webgpu", "npu", "qnn", "vitisai", "openvino", "trtrtx", "tensorrt")
)
_WORD = re.compile(r"[a-z0-9]+")
_GIB = 1024**3


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository on a hub: its path in the repository, its size in bytes, and its digest, by which a
    download is checked.
    """

    path: str
    # The size in bytes.
    size: int
    # `sha256:…` of the content, or `git:…` of git's blob.
    digest: str

    @property
    def shown(self) -> str:
        """The file's path as it is shown to the user, with control characters escaped, because the repository's owner
        has chosen the path.
        """
        return escaped(self.path)


@dataclass(frozen=True)
class Repository:
    """What a hub says about a repository at one commit: its files and, if known, the repository of the original model
    from which this one was made. `Hub.repository` returns it.
    """

    name: str
    commit: str
    files: tuple[RemoteFile, ...]
    # The repository of the original model; "" if the card does not name one.
    base: str = ""


@dataclass(frozen=True)
class Selection:
    """Files of a repository that form one model, and are to be downloaded into one directory: by the names that they
    get in this directory.
    """

    # The folder of the repository that contains the files; "" for the top.
    folder: str
    # The files by their names in the model directory.
    files: dict[str, RemoteFile]

    @property
    def size(self) -> int:
        """The total size of all files in bytes."""
        return sum(file.size for file in self.files.values())


def is_repository_name(text: str) -> bool:
    """Whether a text has the form of the name of a repository on a hub: `OWNER/NAME`, or just `NAME`, which some old
    repositories have.
    """
    return _NAME.fullmatch(text) is not None


def could_be_repository(text: str) -> bool:
    """Whether a text that the user has typed could mean a repository on a hub: it has the form `OWNER/NAME`,
    `OWNER/NAME:FOLDER` or of a repository's address. Short names and absolute paths do not count.
    """
    name = text.removeprefix("https://").removeprefix("huggingface.co/").partition(":")[0].strip("/")
    return "/" in name and not text.startswith("/") and is_repository_name(name)


# Gets models of which any may be meant, and returns the one that is; None if it cannot say.
Choose = Callable[[Sequence["Selection"]], "Selection | None"]


def select_model(
    repository: Repository, include: Sequence[str] = (), device: str = "", choose: Choose = lambda candidates: None
) -> Selection:
    """Choose the files of a repository that form the model to download: its only onnxruntime-genai model or, if there
    is none, its only encoder. Returns these files.

    With patterns in `include`, only files that match one of them count. Of several variants of a model, the best one
    for the kind of device `device`, such as "cuda", is selected. If several models remain, `choose` gets them and
    returns one, or None to choose none. Raises PullFailed if no model matches, or if several do and none was chosen.
    """
    chosen = [file for file in repository.files if not include or _matches(file.path, include)]
    if not chosen:
        raise PullFailed(f"no file of {repository.name} matches --include {' '.join(include)}")
    folders = _model_folders(chosen)
    if not folders:
        return _select_encoder(repository, include)
    if len(folders) == 1 or "" in folders:
        return _select_folder(folders[0], folders, chosen)
    models = [_select_folder(folder, folders, chosen) for folder in folders]
    fitting = for_device(models, device) if device else []
    if len(fitting) == 1:
        return fitting[0]
    if (selected := choose(fitting or models)) is not None:
        return selected
    sizes = {model.folder: model.size for model in fitting or models}
    problem = f"several models for {device}" if fitting else f"no model for {device}" if device else "several models"
    raise PullFailed(_variants(f"{repository.name} has {problem}", repository, sizes))


def for_device(models: Sequence[Selection], device: str) -> list[Selection]:
    """Return the best variant of each model for a kind of device such as "cuda". `models` has all variants of one or
    several models; the names of its folders say what a variant was built for. Models without a variant for the device
    are left out.

    A variant for exactly this kind of device comes before one for all GPUs; among equal ones int4 before other data
    types, then a faster accuracy level (acc-level-4), then the smaller size.
    """
    words = _FOR_DEVICES.get(device, (device,))
    best: dict[str, Selection] = {}
    ranks: dict[str, tuple[int, bool, bool, int]] = {}
    for model in models:
        named = _devices_in(model.folder)
        rank_of_device = min((words.index(word) for word in named if word in words), default=None)
        if rank_of_device is None:
            continue
        name = "/".join(part for part in model.folder.split("/") if not _devices_in(part))
        folder = model.folder.lower()
        rank = (rank_of_device, "int4" not in folder, "acc-level-4" not in folder, model.size)
        if name not in best or rank < ranks[name]:
            best[name], ranks[name] = model, rank
    return list(best.values())


def suitable(models: Sequence[Selection], device: str) -> dict[str, bool | None]:
    """Return for each of `models` (by its folder in the repository) whether it is the best variant for a kind of device
    such as "cuda"; None if the folder's name does not say for which devices it was built.
    """
    best = {model.folder for model in for_device(models, device)}
    return {model.folder: model.folder in best if _devices_in(model.folder) else None for model in models}


def _devices_in(folder: str) -> frozenset[str]:
    """Return those words in a folder's name that say for which devices a model was built, such as "cuda"."""
    return _DEVICE_WORDS & {*_WORD.findall(folder.lower())}


def models_of(repository: Repository) -> list[Selection]:
    """Return the files of each onnxruntime-genai model in a repository, one selection for each model. If there is none,
    returns the selection of the repository's encoder.

    Raises PullFailed if the repository has neither.
    """
    folders = _model_folders(repository.files)
    if not folders:
        return [_select_encoder(repository, ())]
    return [_select_folder(folder, folders, repository.files) for folder in folders]


def _model_folders(files: Iterable[RemoteFile]) -> list[str]:
    return sorted({_folder(file.path) for file in files if PurePosixPath(file.path).name == GENAI_CONFIG})


def _select_folder(folder: str, folders: Sequence[str], files: Iterable[RemoteFile]) -> Selection:
    """Return the selection of those `files` that belong to the model in the folder `folder` of a repository. `folders`
    has the folders of all its models; files of models in subfolders are left out.
    """
    inside, other_folders = f"{folder}/" if folder else "", tuple(f"{other}/" for other in folders if other != folder)
    return _selection(
        folder, [file for file in files if file.path.startswith(inside) and not file.path.startswith(other_folders)]
    )


def select_source(repository: Repository) -> Selection:
    """Return those files of a repository from which a model can be built: those at the top, such as weights,
    configuration and tokenizer, and those of sentence-transformers modules.

    Raises PullFailed if the repository has no config.json.
    """
    top = [file for file in repository.files if "/" not in file.path]
    if not any(file.path == CONFIG for file in top):
        raise PullFailed(f"{repository.name} has no {CONFIG}: there is nothing to build a model from")
    modules = [file for file in repository.files if _MODULE_FOLDER.fullmatch(file.path)]
    return _selection("", [*(file for file in top if _matches(file.path, _SOURCE)), *modules])


def select_gguf(repository: Repository, include: Sequence[str] = ()) -> RemoteFile | None:
    """Return the only GGUF file of a repository that matches one of the patterns `include`.

    Without patterns, returns the only GGUF file, or None if the repository has none or also has safetensors files.
    Raises PullFailed if no file matches the patterns, or if there are several files.
    """
    files = [file for file in repository.files if fnmatchcase(file.path, _GGUF)]
    files = [file for file in files if not _matches(PurePosixPath(file.path).name, _NO_MODELS)]
    chosen = [file for file in files if not include or _matches(file.path, include)]
    if include and not chosen:
        raise PullFailed(f"no GGUF file of {repository.name} matches --include {' '.join(include)}")
    if not chosen or (not include and any(file.path.endswith(".safetensors") for file in repository.files)):
        return None
    if len(chosen) > 1:
        lines = [f'  --include "{file.shown}"  ({file.size / _GIB:.2f} GiB)' for file in chosen]
        raise PullFailed("\n".join([f"{repository.name} has several models; choose one with --include:", *lines]))
    return chosen[0]


def with_tokenizer(repository: Repository, file: RemoteFile) -> Selection:
    """Return the selection that consists of the GGUF file `file` and the tokenizer files of its repository, for a
    directory in which all of them lie side by side.
    """
    return Selection(
        "", {other.path: other for other in repository.files if other.path in _TOKENIZERS} | {name_of(file): file}
    )


def name_of(file: RemoteFile) -> str:
    """Return a file's name without the folders in its path."""
    return PurePosixPath(file.path).name


def select_pooling(repository: Repository) -> Selection:
    """Return the files that describe how the vectors of an embedding model are pooled; an empty selection if the
    repository has no modules.json.
    """
    files = [f for f in repository.files if f.path in MODULE_FILES or _MODULE_FOLDER.fullmatch(f.path)]
    return _selection("", files if any(file.path == MODULES for file in files) else [])


def _select_encoder(repository: Repository, include: Sequence[str]) -> Selection:
    """Return the selection of a repository's encoder (a model for embeddings or reranking): its ONNX graph and the
    files that belong to it. `include` has patterns that choose among several graphs.

    Raises PullFailed if the repository has no encoder, or several graphs of which `include` does not name one.
    """
    graphs = {f.path: f for f in repository.files if f.path.endswith(".onnx") and _folder(f.path) in _GRAPH_FOLDERS}
    names = [name for name in graphs if _matches(name, include)] if include else []
    names = names or [name for name in _GRAPHS if name in graphs and not include][:1]
    has_config = any(file.path == CONFIG for file in repository.files)
    if not graphs or not has_config or (include and not names):
        raise PullFailed(no_model(repository, include))
    if len(names) != 1:
        sizes = {name: graphs[name].size for name in names or graphs}
        raise PullFailed(_variants(f"{repository.name} has several graphs", repository, sizes))
    (graph,) = names
    texts = [file for file in repository.files if "/" not in file.path and _matches(file.path, _NEXT_TO_GRAPHS)]
    modules = [file for file in repository.files if _MODULE_FOLDER.fullmatch(file.path)]
    other_graphs = tuple(name for name in graphs if name != graph)
    return _selection(
        "", [*texts, *modules, *(f for f in repository.files if _is_of_graph(f.path, graph, other_graphs))]
    )


def _is_of_graph(path: str, graph: str, other_graphs: tuple[str, ...]) -> bool:
    """Whether the file at `path` is the ONNX graph `graph` or may contain its weights. `other_graphs` are the paths of
    the repository's other graphs.

    Some tools name files of weights after the graph, others after a tensor. So every file in the graph's folder counts
    that does not belong to one of the other graphs.
    """
    if path.startswith(graph):
        return True
    is_beside = _folder(path) == _folder(graph) != ""
    return is_beside and not path.startswith(other_graphs) and not _matches(path, _NEXT_TO_GRAPHS)


def _selection(folder: str, files: Iterable[RemoteFile]) -> Selection:
    start = len(folder) + 1 if folder else 0
    named = {file.path[start:]: file for file in files if not _matches(name_of(file), _UNUSED)}
    for name in named:
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive:
            raise PullFailed(f"a file of the repository would be written outside the directory: {quoted(name)}")
    return Selection(folder, named)


def no_model(repository: Repository, include: Sequence[str] = ()) -> str:
    """Return the error message for the user if a repository has no model that this server can run, with advice.
    `include` are the patterns to which the user has restricted the files.
    """
    where = f"no {GENAI_CONFIG} among the files that --include names" if include else f"no {GENAI_CONFIG}"
    original = repository.base if is_repository_name(repository.base) else repository.name
    remedy = "name a folder that has one" if include else f"genai-server export {original} builds one"
    return f"{repository.name} has no onnxruntime-genai model ({where}); {remedy}"


def _variants(problem: str, repository: Repository, sizes: Mapping[str, int]) -> str:
    """Return an error message for the user that begins with `problem` and lists variants of a model, one of which the
    user must choose. `sizes` has the size in bytes of each variant by its folder or file.
    """
    lines = [f"{problem}; choose one:"]
    for folder, size in list(sizes.items())[:_MAX_SHOWN]:
        lines.append(f"  {repository.name}:{escaped(folder)}  ({size / _GIB:.2f} GiB)")
    if len(sizes) > _MAX_SHOWN:
        lines.append(f"  and {len(sizes) - _MAX_SHOWN} more")
    return "\n".join(lines)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path matches one of the patterns. As in huggingface_hub, a pattern that ends in a slash matches
    everything in that folder.
    """
    return any(fnmatchcase(path, pattern + "*" if pattern.endswith("/") else pattern) for pattern in patterns)


def _folder(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent
