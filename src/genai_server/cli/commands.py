"""The commands of `genai-server`. A new one is a module with `add_arguments`, and a line in this table."""

import argparse
import gc
from collections.abc import Sequence
from importlib import import_module

# Each with its module and what it does. Those of `tools` and `ray_serve` build on this package, so they are imported by
# name.
COMMANDS = {
    "serve": ("cli.serve.serve_command", "serve a model directory over HTTP"),
    "deploy": ("ray_serve.deploy_command", "deploy replicas on Ray Serve"),
    "pull": ("cli.pull_command", "fetch a model from a hub"),
    "export": ("cli.export_command", "build a model directory"),
    "models": ("cli.models_command", "list, check and remove models"),
    "cache": ("cli.cache_command", "list and clear the prefix cache on disk"),
    "run": ("tools.terminal_chat.run_command", "fetch a model if needed, and chat with it"),
    "chat": ("tools.terminal_chat.chat_command", "chat in the terminal"),
    "transcribe": ("tools.terminal_chat.transcribe_command", "transcribe a recording"),
    "batch": ("tools.batch_command", "answer the requests in a file"),
    "key": ("cli.key_command", "create an API key"),
    "top": ("tools.top.top_command", "watch a running server"),
    "bench": ("tools.bench.bench_command", "measure OpenAI-style servers and the bare library"),
    "profile": ("tools.profile_command", "read the profiles of a server"),
    "doctor": ("tools.doctor.doctor_command", "check what serving needs"),
    "tune": ("tools.tune.tune_command", "find the best settings for this machine"),
    "import-triton": ("tools.import_triton", "translate a Triton model's config.pbtxt"),
}


def add_commands(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Add all commands to the parser, and the arguments of the one that is named.

    Importing the modules of all commands takes most of a second.
    """
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    named = next((argument for argument in arguments if argument in COMMANDS), None)
    for command, (place, summary) in COMMANDS.items():
        added = subparsers.add_parser(command, help=summary)
        if command == named:
            gc.disable()  # imported objects stay; collections would take a fifth of the time
            module = import_module(f"genai_server.{place}")
            gc.enable()
            added.description = module.__doc__
            module.add_arguments(added)
