"""`genai-server pull REPO`: fetches a model of onnxruntime-genai from the Hugging Face hub, or from HF_ENDPOINT.

Every file is compared with the hub's hash, and the directory appears when all are there and right. What has come when
the connection breaks is kept, and the same command goes on with it; run for a model that is there, it repairs it or
brings it up to date.
"""

import argparse
import shlex
import shutil
from pathlib import Path

from genai_server.config import load_settings
from genai_server.engine.model.files import GIVE_A_TEMPLATE, NO_CHAT_TEMPLATE, check_model_directory, has_chat_template
from genai_server.errors import ConfigurationError, ModelDirectoryError, PullFailed
from genai_server.hub import store
from genai_server.hub.client import Hub
from genai_server.hub.download import download
from genai_server.hub.repository import Repository, Selection, is_repository_name, select_model
from genai_server.quoted import quoted

# As a shell has it for a program that Ctrl-C ended.
INTERRUPTED = 130
_MIB = 1024 * 1024


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The subcommand and its options."""
    parser = subparsers.add_parser("pull", help="fetch a model from a hub", description=__doc__)
    parser.add_argument("repository", metavar="REPO", help="such as microsoft/Phi-4-mini-instruct-onnx")
    parser.add_argument(
        "--include",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help='files to fetch, such as "cpu_and_mobile/*"; of a repository with several models, the one to take',
    )
    add_hub_options(parser)
    parser.add_argument("--to", type=Path, metavar="DIR", help="where it goes (default: GENAI_MODELS_DIR/NAME)")
    parser.set_defaults(run=run)


def add_hub_options(parser: argparse.ArgumentParser) -> None:
    """The options of all that asks a hub."""
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit (default: main)")
    parser.add_argument("--token", metavar="TOKEN", help="of the hub (default: HF_TOKEN, or that of hf auth login)")


def run(arguments: argparse.Namespace) -> int:
    """Fetch it; returns the exit status. Raises ConfigurationError and PullFailed."""
    name = checked_name(arguments.repository)
    directory = absolute(arguments.to or store.place_of(load_settings().models_path, name))
    hub = Hub(arguments.token)
    repository = hub.repository(name, arguments.revision)
    selection = select_model(repository, arguments.include)
    with store.only_one(directory):
        if _is_up_to_date(directory, repository, selection):
            print(f"{directory} is as on {hub.endpoint} already (commit {repository.commit[:8]})")
        else:
            fetch(hub, repository, selection, directory)
            size = selection.size / _MIB
            print(f"{name} (commit {repository.commit[:8]}, {size:.0f} MiB) is in {directory}, checked")
    tell_how_to_serve(directory)
    return 0


def fetch(hub: Hub, repository: Repository, selection: Selection, directory: Path) -> None:
    """Make the directory of the selected files. Raises PullFailed, and leaves what is there of it as it was."""
    folder = store.staging(directory)
    try:
        if directory.exists():
            store.seed(folder, directory)
        download(hub, repository, selection, folder, tell=lambda line: print(line, flush=True))
        check_model_directory(folder)
    except ModelDirectoryError as error:
        message = error.message.replace(str(folder), repository.name)
        shutil.rmtree(folder, ignore_errors=True)
        raise PullFailed(f"the selected files are no whole model: {message}") from None
    except KeyboardInterrupt:
        raise PullFailed("stopped; what has come is kept, and the same command goes on with it") from None
    store.install(folder, directory, store.origin_of_pull(repository, selection))


def checked_name(text: str) -> str:
    """A repository's name as its owner writes it, also if the address of its page is given."""
    name = text.removeprefix("https://huggingface.co/").strip("/")
    if not is_repository_name(name):
        raise ConfigurationError(f"{quoted(text)} is no name of a repository; one is such as owner/name")
    return name


def absolute(path: Path) -> Path:
    """The path from the root on, so that what is printed works elsewhere, too."""
    return path.expanduser().absolute()


def tell_how_to_serve(directory: Path) -> None:
    """Print the lines to serve the model, and to talk to it."""
    quoted = shlex.quote(str(directory))
    print(f"serve it:  genai-server serve --model-dir {quoted} --model-name {shlex.quote(directory.name)}")
    if has_chat_template(directory):
        print(f"try it:    genai-server chat {quoted}")
    else:
        print(f"it {NO_CHAT_TEMPLATE}; {GIVE_A_TEMPLATE}")


def _is_up_to_date(directory: Path, repository: Repository, selection: Selection) -> bool:
    """Raises ConfigurationError if something else is in the directory's place."""
    if not directory.exists():
        return False
    wanted, origin = store.origin_of_pull(repository, selection), store.read_origin(directory)
    if origin is None or (origin.source, origin.folder) != (wanted.source, wanted.folder):
        what = f"{origin.source} {origin.folder}".strip() if origin else "something"
        raise ConfigurationError(f"{directory} has {what} in it already; name another place with --to")
    return origin.files == wanted.files and not store.changed_files(directory, origin)
