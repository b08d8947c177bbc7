"""`genai-server pull REPO`: fetches an onnxruntime-genai model from the Hugging Face hub, or from HF_ENDPOINT.

Every file is compared with the hub's hash. The directory appears once all files are complete and correct. After a
broken connection, the same command continues where it stopped. If the model already exists, the command repairs or
updates its files, and keeps those that are not the repository's.
"""

import argparse
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from genai_server.cli.parser import path_of
from genai_server.cli.screen import print_to_stderr, say
from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from genai_server.engine.model.files import (
    GIVE_A_TEMPLATE,
    NO_CHAT_TEMPLATE,
    check_model_directory,
    has_chat_template,
    unsupported_media_message,
)
from genai_server.errors import ConfigurationError, ModelDirectoryError, PullFailed, escaped, quoted
from genai_server.hub import store
from genai_server.hub.client import Hub, Watch, download
from genai_server.hub.repository import (
    Repository,
    Selection,
    is_repository_name,
    no_model,
    select_model,
    select_pooling,
)
from genai_server.hub.short_names import SHORT_NAMES
from genai_server.model_files.config_files import CONFIG, GENAI_CONFIG
from genai_server.model_files.pooling_model import ENDPOINTS, MODULES, Task, read_pooling_model, task_of

_MIB, _GIB = 1024**2, 1024**3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server pull` to `parser`, and set `run` as the function that executes the
    command.
    """
    parser.add_argument(
        "repository",
        metavar="REPO",
        help=f"such as microsoft/Phi-4-mini-instruct-onnx; OWNER/NAME:FOLDER chooses one of several models. Or a short "
        f"name: {', '.join(SHORT_NAMES)}",
    )
    parser.add_argument(
        "--include",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help='files to fetch instead of a FOLDER, such as "cpu_and_mobile/*"',
    )
    parser.add_argument(
        "--original",
        metavar="REPO",
        help="for embeddings: the repository whose modules.json says how vectors are pooled, if REPO has none "
        "(default: the one of the last pull, or base_model of REPO's card)",
    )
    add_hub_options(parser)
    parser.add_argument("--to", type=Path, metavar="DIR", help="target directory (default: GENAI_MODELS_DIR/NAME)")
    parser.set_defaults(run=run)


def add_hub_options(parser: argparse.ArgumentParser) -> None:
    """Add the options --revision and --token, which all commands with access to a hub have, to `parser`."""
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit (default: main)")
    parser.add_argument(
        "--token", metavar="TOKEN", help="access token of the hub (default: HF_TOKEN, or the token of hf auth login)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server pull`: download a model, or repair or update it. `arguments` are the parsed command line.
    Returns the exit status.

    Raises ConfigurationError for wrong arguments or if the directory contains another model, and PullFailed if the
    download fails.
    """
    settings = load_settings()
    source = source_of(arguments.repository, settings)
    if source.include and arguments.include:
        raise ConfigurationError(f"{arguments.repository} names a folder already; leave --include out")
    directory = absolute(arguments.to or place_of(settings.models_path, source))
    original = checked_name(arguments.original) if arguments.original else ""
    include = source.include or arguments.include
    source = replace(source, include=include, revision=arguments.revision, original=original)
    print(pull(Hub(arguments.token), source, directory))
    print_how_to_serve(directory)
    return 0


@dataclass(frozen=True)
class Source:
    """What to download: the name of a repository on a hub, patterns of its files, the revision, and for which kind of
    device. `source_of` creates it from the argument of a command.
    """

    # Name of a repository.
    name: str
    # Patterns of its files; empty for its only model.
    include: Sequence[str] = ()
    # A branch, tag or commit; None for `main`.
    revision: str | None = None
    # The repository of the original model; "" for the one of an earlier pull, or else of the card.
    original: str = ""
    # The kind of device, such as cpu, whose variant is chosen where the repository has several; "" chooses none.
    device: str = ""
    # The short name by which it was asked for; "" for a repository's own name.
    short_name: str = ""


def source_of(text: str, settings: Settings) -> Source:
    """Return what to download for `text`, which is `OWNER/NAME`, `OWNER/NAME:FOLDER` or a short name. Of several
    variants in the repository, the one for the first configured device shall be downloaded.

    Raises ConfigurationError if `text` has another form.
    """
    name, _, folder = SHORT_NAMES.get(text, text).removeprefix("https://").partition(":")
    short_name = text if text in SHORT_NAMES else ""
    return Source(checked_name(name), in_folder(folder.strip("/")), device=kind_of(settings), short_name=short_name)


def kind_of(settings: Settings) -> str:
    """Return the kind of the first configured device, such as "cuda" for `cuda:1`. Variants of models are downloaded
    for this kind.
    """
    return settings.devices[0].partition(":")[0]


def place_of(models: Path, source: Source) -> Path:
    """Return the directory in the folder `models` into which a source is downloaded, named after its short name or else
    the last part of the repository's name.
    """
    return store.place_of(models, source.short_name or source.name)


def in_folder(path: str) -> list[str]:
    """Return the patterns of the files to download from a repository if `path` is a folder of it, or one graph (.onnx)
    in it. Returns an empty list, which stands for the whole repository, if `path` is "".
    """
    return [path if path.endswith(".onnx") else f"{path}/*"] if path else []


def pull(
    hub: Hub,
    source: Source,
    directory: Path,
    *,
    report: Callable[[str], None] = say,
    watch: Watch | None = None,
) -> str:
    """Download the model `source` from a hub into a directory, or update it, unless the directory is up to date.
    Returns a sentence about the result for the user.

    `report` is called with lines about the progress. `watch` is called with a file and the number of its bytes that
    have been downloaded; without it, a progress bar is shown, and the user is asked if the repository has several
    models. Raises ConfigurationError if the directory contains another model, and PullFailed if the download fails.
    """
    name = source.name
    report(f"looking {name} up on {hub.endpoint}")
    repository = hub.repository(name, source.revision)
    selection = select_model(
        repository, source.include, source.device, _ask_person if watch is None else lambda models: None
    )
    if selection.folder:
        report(f"{name}:{escaped(selection.folder)} is for {source.device or 'this device'}: {_sizes(selection)}")
    if source.original and {GENAI_CONFIG, MODULES} & selection.files.keys():
        raise _no_original_needed(source)
    with store.locked(directory):
        former = _former(directory, name, selection)
        original = source.original or (former.original if former is not None else "")
        digests = {name: file.digest for name, file in selection.files.items()}
        is_same = former is not None and (former.original, former.files) == (original, digests)
        if former is not None and is_same and not store.changed_files(directory, former):
            return f"{directory} is already up to date with {hub.endpoint} (commit {repository.commit[:8]})"
        repository = replace(repository, base=original or repository.base)
        added = _fetch(hub, source, repository, selection, directory, report, watch)
        if former is not None:
            store.keep(store.staging(directory), directory, former)
        origin = store.Origin(name, repository.commit, selection.folder, original, files=digests, added=added)
        store.install(store.staging(directory), directory, origin)
        size = selection.size / _MIB
        return f"{name} (commit {repository.commit[:8]}, {size:.0f} MiB) is in {directory}, checked"


def _sizes(selection: Selection) -> str:
    """Return a phrase for the user that says how much disk space and memory a model needs."""
    return f"{selection.size / _GIB:.2f} GiB on the disk, and in memory as much beside its context"


def _ask_person(models: Sequence[Selection]) -> Selection | None:
    """Let the user choose one of several models of a repository from a numbered list in the terminal. Returns the
    chosen model; None without a terminal or without a valid answer.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    for number, model in enumerate(models, 1):
        print_to_stderr(f"{number:3}  {escaped(model.folder)}  ({model.size / _GIB:.2f} GiB)")
    try:
        answer = input(f"which one? 1 to {len(models)}: ").strip()
    except EOFError:
        return None
    by_number = {str(number): model for number, model in enumerate(models, 1)}
    return by_number.get(answer)


def _fetch(
    hub: Hub,
    source: Source,
    repository: Repository,
    selection: Selection,
    directory: Path,
    report: Callable[[str], None],
    watch: Watch | None,
) -> list[str]:
    """Download the files in `selection` into the staging folder next to the model directory `directory`, where they are
    kept until all are complete. Returns the names of files that were added from another repository, which is often
    necessary for embedding models; empty if there are none.

    The ONNX export of an embedding model often lacks the files that say how its vectors are pooled. These are then
    taken from the repository of the model that was exported, the original, which `source` may name. `report` is called
    with lines about the progress, and `watch` follows the download; None shows its progress on the terminal.

    Raises ConfigurationError, and PullFailed if the download fails or the files are not a complete model.
    """
    from genai_server.cli.screen import download_progress  # with Rich, which servers need for a pull only

    folder = store.staging(directory)
    try:
        with tempfile.TemporaryDirectory() as added:
            if GENAI_CONFIG not in selection.files:
                _find_pooling(hub, source, repository, selection, Path(added), report)
            if directory.exists():
                store.seed(folder, directory)
            with download_progress(selection, report) if watch is None else nullcontext(watch) as watching:
                download(hub, repository, selection, folder, watching)
            shutil.copytree(added, folder, dirs_exist_ok=True)
            names = [path.relative_to(added).as_posix() for path in Path(added).rglob("*") if path.is_file()]
        check_model_directory(folder)
        return names
    except ModelDirectoryError as error:
        message = escaped(error.message.replace(str(folder), repository.name))
        shutil.rmtree(folder, ignore_errors=True)
        raise PullFailed(f"the selected files are not a complete model: {message}") from None
    except KeyboardInterrupt:
        raise PullFailed("stopped; the same command continues from here") from None


def _find_pooling(
    hub: Hub,
    source: Source,
    repository: Repository,
    selection: Selection,
    folder: Path,
    report: Callable[[str], None],
) -> None:
    """Download the files that say how an embedding model's vectors are pooled into `folder`, from the repository of the
    original model, if the model's own repository lacks them.

    Files that the model's own repository has are not replaced. `report` is called with a line about each file. Raises
    PullFailed for a decoder that generates text, before its weights are downloaded, and ConfigurationError if the user
    has named an original that the model does not need.
    """
    with tempfile.TemporaryDirectory() as temporary_folder:
        fetch_description(hub, repository, Path(temporary_folder))
        if task_of(Path(temporary_folder)) is Task.RERANK or (Path(temporary_folder) / MODULES).is_file():
            if source.original:
                raise _no_original_needed(source)
            return
        if is_repository_name(repository.base):
            base = hub.repository(repository.base, None)
            for name, file in select_pooling(base).files.items():
                if name in selection.files:
                    continue
                report(f"{name} is fetched from {base.name}, this model's original")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                hub.fetch(base, file, folder / name)
        shutil.copytree(folder, temporary_folder, dirs_exist_ok=True)
        if task_of(Path(temporary_folder)) is Task.GENERATE:
            raise PullFailed(no_model(repository))


def _no_original_needed(source: Source) -> ConfigurationError:
    return ConfigurationError(f"--original {source.original}: {source.name} itself describes how its model is used")


def fetch_description(hub: Hub, repository: Repository, folder: Path) -> None:
    """Download the files that say what a model is for (config.json and modules.json), as far as the repository has
    them, into `folder`. Raises PullFailed if a download fails.
    """
    for file in repository.files:
        if file.path in (CONFIG, MODULES):
            hub.fetch(repository, file, folder / file.path)


def checked_name(text: str) -> str:
    """Return the name (`owner/name`) of a repository on a hub, which the user has given as such or as the address of
    the repository's page. Raises ConfigurationError for other texts.
    """
    name = text.removeprefix("https://").removeprefix("huggingface.co/").strip("/")
    if not is_repository_name(name):
        raise ConfigurationError(f"{quoted(text)} is not the name of a repository, such as owner/name")
    return name


def absolute(path: Path) -> Path:
    """Return `path` as an absolute path with ~ expanded, so that commands shown to the user work in any directory."""
    return path_of(str(path)).absolute()


def print_how_to_serve(directory: Path) -> None:
    """Print the commands with which the user can serve the model in `directory` and chat with it."""
    is_known = directory.parent == load_settings().models_path.absolute()
    quoted = shlex.quote(directory.name if is_known else str(directory))
    print(f"serve it:  genai-server serve {quoted}")
    if (task := task_of(directory)) is not Task.GENERATE:
        model = read_pooling_model(directory)
        print(f"it serves {' and '.join(ENDPOINTS[task])}{f': {model.summary()}' if model else ''}")
    elif has_chat_template(directory):
        print(f"try it:    genai-server chat {quoted}")
    else:
        print(f"it {NO_CHAT_TEMPLATE}; {GIVE_A_TEMPLATE}")
    if left_out := unsupported_media_message(directory):
        print(f"it {left_out}")


def _former(directory: Path, name: str, selection: Selection) -> store.Origin | None:
    """Return the recorded origin of the model directory into which a model is to be downloaded; None if the directory
    does not exist yet.

    `name` is the repository, and `selection` has the files to download. Raises ConfigurationError if the directory
    contains another model.
    """
    if not directory.exists():
        return None
    origin = store.read_origin(directory)
    if origin is None or (origin.source, origin.folder) != (name, selection.folder):
        content = f"{origin.source} {origin.folder}".strip() if origin else "other files"
        raise ConfigurationError(f"{directory} already holds {content}; genai-server pull {name} --to DIR uses another")
    return origin
