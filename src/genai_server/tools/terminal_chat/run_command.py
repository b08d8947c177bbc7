"""`genai-server run MODEL`: chat with a model, which is fetched first if necessary.

MODEL is a model directory, the name of one in GENAI_MODELS_DIR, or a repository of a hub, such as
microsoft/Phi-4-mini-instruct-onnx. `OWNER/NAME:FOLDER` names a folder of a repository with several models. The chat is
the one of `genai-server chat`, with its own server.
"""

import argparse
from pathlib import Path

from genai_server.cli.models_command import find
from genai_server.cli.pull_command import Source, absolute, add_hub_options, checked_name, in_folder, pull
from genai_server.config.sources import load_settings
from genai_server.errors import ConfigurationError
from genai_server.hub import store
from genai_server.hub.client import Hub
from genai_server.tools.terminal_chat import chat_command as chat

_EXAMPLES = (
    "`genai-server models` lists local models; a repository of a hub is OWNER/NAME, "
    "such as microsoft/Phi-4-mini-instruct-onnx"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("target", metavar="MODEL", help="a model directory, its name, or a repository")
    chat.add_dialogue_options(parser)
    add_hub_options(parser)
    parser.set_defaults(run=run, model=None, api_key=None)


def run(arguments: argparse.Namespace) -> int:
    """Chat until the user ends it; returns the exit status. Raises ConfigurationError, PullFailed and ChatFailed."""
    arguments.target = str(_fetched(arguments))
    return chat.run(arguments)


def _fetched(arguments: argparse.Namespace) -> Path:
    """The directory of the model, which is fetched from the hub if necessary."""
    try:
        return find(arguments.target)
    except ConfigurationError as error:
        repository, _, folder = arguments.target.removeprefix("https://").partition(":")
        if "/" not in repository.strip("/"):
            raise ConfigurationError(f"{error}; {_EXAMPLES}") from None
    name = checked_name(repository)
    directory = absolute(store.place_of(load_settings().models_path, name))
    origin = store.read_origin(directory)
    is_here = origin is not None and origin.source == name and folder.strip("/") in ("", origin.folder)
    if not is_here or arguments.revision:
        source = Source(name, in_folder(folder.strip("/")), arguments.revision)
        print(pull(Hub(arguments.token), source, directory))
    return directory
