"""The command line: `genai-server`."""

import argparse
import sys
from importlib import import_module

from genai_server import __version__
from genai_server.errors import ChatFailed, ConfigurationError, ExportFailed, PullFailed

# Each is a module of this package, with dashes for underscores.
COMMANDS = (
    "serve",
    "pull",
    "export",
    "models",
    "chat",
    "key",
    "top",
    "bench",
    "profile",
    "doctor",
    "tune",
    "import-triton",
)


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; returns the exit status: 2 for a wrong setting, 1 for what failed on the way."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="genai-server", description="Serve onnxruntime-genai models over HTTP.")
    parser.add_argument("--version", action="version", version=f"genai-server {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _needed(arguments):
        import_module(f"genai_server.cli.{command.replace('-', '_')}").add_parser(subparsers)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except ConfigurationError as error:
        print(f"genai-server: {error}", file=sys.stderr)
        return 2
    except (PullFailed, ExportFailed, ChatFailed) as error:
        print(f"genai-server: {error}", file=sys.stderr)
        return 1
    return status


def _needed(arguments: list[str]) -> tuple[str, ...]:
    """The subcommand that is named, alone, for the modules of all take most of a second; all where it is not known."""
    return tuple(command for command in COMMANDS if arguments[:1] == [command]) or COMMANDS
