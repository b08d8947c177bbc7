"""`genai-server key NAME`: makes an API key, and the line that lets a server know it without having it."""

import argparse

from genai_server.api.middleware.keys import line_of, make_key


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The subcommand and its argument."""
    parser = subparsers.add_parser("key", help="make an API key", description=__doc__)
    parser.add_argument("name", metavar="NAME", help="whose key it is: letters, digits, dots, dashes, underscores")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print key and line; returns the exit status. Raises ConfigurationError for the name."""
    key = make_key()
    line = line_of(arguments.name, key)
    print(f"key, for {arguments.name} alone:     {key}")
    print(f"line for GENAI_API_KEY_FILE: {line}")
    return 0
