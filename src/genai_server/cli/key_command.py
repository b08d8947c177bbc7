"""`genai-server key NAME`: creates an API key, and the line by which a server recognizes it without storing it."""

import argparse

from genai_server.http.api_keys import line_of, make_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's argument."""
    parser.add_argument("name", metavar="NAME", help="the key's owner: letters, digits, dots, dashes, underscores")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the key and its line; returns the exit status. Raises ConfigurationError for a wrong name."""
    key = make_key()
    line = line_of(arguments.name, key)
    print(f"key, for {arguments.name} alone:     {key}")
    print(f"line for GENAI_API_KEY_FILE: {line}")
    return 0
