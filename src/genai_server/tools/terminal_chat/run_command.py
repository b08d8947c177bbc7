"""Chat with a model, or ask it one question. It is fetched first if necessary.

The chat is the one of `genai-server chat`, with a server of its own.
"""

import argparse

from genai_server.cli.model_argument import fetched
from genai_server.cli.pull_command import add_hub_options
from genai_server.cli.screen import print_note, print_to_stderr
from genai_server.config.sources import load_settings
from genai_server.tools.terminal_chat import chat_command as chat


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "target",
        metavar="MODEL",
        help="a model directory, the name of one in GENAI_MODELS_DIR, or a repository, which is fetched if it is not "
        "there yet: OWNER/NAME, or OWNER/NAME:FOLDER for one of its models",
    )
    chat.add_dialogue_options(parser)
    add_hub_options(parser)
    parser.set_defaults(run=run, model=None, api_key=None)


def run(arguments: argparse.Namespace) -> int:
    """Chat until the user ends it; returns the exit status. Raises ConfigurationError, PullFailed and ChatFailed."""
    report = print_to_stderr if arguments.question else print_note
    arguments.target = str(fetched(arguments.target, load_settings(), arguments.revision, arguments.token, report))
    return chat.run(arguments)
