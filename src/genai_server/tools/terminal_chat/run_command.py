"""`genai-server run MODEL [QUESTION]`: chat with a model in the terminal, or ask it one question.

The model is fetched first if necessary. The command starts a server for it, and stops the server at the end; the chat
itself is that of `genai-server chat`.
"""

import argparse

from genai_server.cli.model_argument import fetched
from genai_server.cli.pull_command import add_hub_options
from genai_server.cli.screen import print_note, print_to_stderr
from genai_server.config.sources import load_settings
from genai_server.tools.terminal_chat import chat_command as chat


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server run` to `parser`, and set `run` as the function that executes the
    command.
    """
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
    """Execute `genai-server run`: fetch the model if it is not there yet, start a server for it, and chat until the
    user ends it or answer one question. `arguments` are the parsed command line. Returns the exit status.

    Raises ConfigurationError for wrong settings, PullFailed if the model cannot be fetched, and ChatFailed if the chat
    fails.
    """
    report = print_to_stderr if arguments.question else print_note
    arguments.target = str(fetched(arguments.target, load_settings(), arguments.revision, arguments.token, report))
    return chat.run(arguments)
