"""The command line: `genai-server`."""

import argparse
import sys

from genai_server import __version__
from genai_server.cli import bench, chat, doctor, export, import_triton, key, models, profile, pull, serve, top, tune
from genai_server.errors import ChatFailed, ConfigurationError, ExportFailed, PullFailed


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; returns the exit status: 2 for a wrong setting, 1 for what failed on the way."""
    parser = argparse.ArgumentParser(prog="genai-server", description="Serve onnxruntime-genai models over HTTP.")
    parser.add_argument("--version", action="version", version=f"genai-server {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    serve.add_parser(subparsers)
    pull.add_parser(subparsers)
    export.add_parser(subparsers)
    models.add_parser(subparsers)
    chat.add_parser(subparsers)
    key.add_parser(subparsers)
    top.add_parser(subparsers)
    bench.add_parser(subparsers)
    profile.add_parser(subparsers)
    doctor.add_parser(subparsers)
    tune.add_parser(subparsers)
    import_triton.add_parser(subparsers)
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
