"""The commands of `genai-server`. A new one is a module with `add_parser`, and a line in this table."""

import argparse
import gc
from collections.abc import Sequence
from importlib import import_module

# Each with its module. Those of `tools` and `ray_serve` build on this package, so they are imported by name.
COMMANDS = {
    "serve": "cli.serve.serve_command",
    "deploy": "ray_serve.deploy_command",
    "pull": "cli.pull_command",
    "export": "cli.export_command",
    "models": "cli.models_command",
    "run": "tools.terminal_chat.run_command",
    "chat": "tools.terminal_chat.chat_command",
    "key": "cli.key_command",
    "top": "tools.top.top_command",
    "bench": "tools.bench.bench_command",
    "profile": "tools.profile_command",
    "doctor": "tools.doctor.doctor_command",
    "tune": "tools.tune.tune_command",
    "import-triton": "tools.import_triton",
}


def add_commands(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Add the named command to the parser; all of them if the name is unknown, and none for --version.

    Importing the modules of all commands takes most of a second.
    """
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    needed = [command for command in COMMANDS if command in arguments[:1]] or COMMANDS
    gc.disable()  # imported objects stay; collections would take a fifth of the time
    for command in needed if list(arguments[:1]) != ["--version"] else ():
        import_module(f"genai_server.{COMMANDS[command]}").add_parser(subparsers)
    gc.enable()
