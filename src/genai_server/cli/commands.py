"""The table of the commands of `genai-server` (`GROUPS`), and `add_commands`, which adds them to the parser of the
command line. A new command is a module with `add_arguments`, and a line in this table.
"""

import argparse
import gc
from collections.abc import Sequence
from importlib import import_module

# By group, each with its module and what it does. Those of `tools` and `ray_serve` build on this package, so they are
# imported by name.
GROUPS = {
    "serve": {
        "serve": ("cli.serve.serve_command", "serve a model over HTTP"),
        "key": ("cli.key_command", "create an API key"),
        "top": ("tools.top_command", "watch a running server"),
        "usage": ("tools.usage_command", "show the tokens of each API key and day"),
        "mcp": ("tools.mcp_command", "let an agent look at a running server"),
        "cache": ("cli.cache_command", "list and clear the prefix cache on disk"),
        "deploy": ("ray_serve.deploy_command", "deploy replicas on Ray Serve"),
    },
    "models": {
        "pull": ("cli.pull_command", "fetch a model from a hub"),
        "export": ("cli.export_command", "build a model directory"),
        "models": ("cli.models_command", "list, check and remove models"),
    },
    "ask": {
        "run": ("tools.terminal_chat.run_command", "fetch a model if necessary, and chat with it"),
        "chat": ("tools.terminal_chat.chat_command", "chat in the terminal"),
        "transcribe": ("tools.terminal_chat.transcribe_command", "transcribe a recording"),
        "batch": ("tools.batch_command", "answer the requests in a file"),
        "launch": ("tools.launch_command", "start a coding agent with a served model"),
    },
    "check and measure": {
        "doctor": ("tools.doctor_command", "check what serving needs"),
        "bench": ("tools.bench.bench_command", "measure OpenAI-style servers and the bare library"),
        "profile": ("tools.profile_command", "read the profiles of a server"),
        "import-triton": ("tools.import_triton", "translate a Triton model's config.pbtxt"),
    },
}
COMMANDS = {command: about for commands in GROUPS.values() for command, about in commands.items()}


def add_commands(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Add all commands to `parser`, but the options of only that command which is named in `arguments`, the words of
    the command line. Only the module of this command is imported.

    Importing the modules of all commands would take most of a second.
    """
    subparsers = parser.add_subparsers(prog=parser.prog, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.epilog = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {command:<14} {summary}" for command, (_, summary) in commands.items())])
        for title, commands in GROUPS.items()
    )
    named = next((argument for argument in arguments if argument in COMMANDS), None)
    for command, (module_name, _) in COMMANDS.items():
        added = subparsers.add_parser(command)
        if command == named:
            gc.disable()  # imported objects stay; collections would take a fifth of the time
            module = import_module(f"genai_server.{module_name}")
            gc.enable()
            added.description = _description(module.__doc__ or "")
            module.add_arguments(added)


def _description(text: str) -> str:
    """Return the description that --help shows for a command: the docstring of its module, `text`, without the
    command's name with which it begins.
    """
    command, mark, description = text.partition("`: ")
    return description[:1].upper() + description[1:] if mark and command.startswith("`genai-server") else text
