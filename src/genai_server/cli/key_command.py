"""`genai-server key NAME`: creates an API key, and the line by which a server recognizes it without storing it."""

import argparse

from genai_server.cli.parser import path_of, positive
from genai_server.http.api_keys import append_line, line_of, make_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server key` to `parser`, and set `run` as the function that executes the
    command.
    """
    parser.add_argument("name", metavar="NAME", help="the key's owner: letters, digits, dots, dashes, underscores")
    parser.add_argument(
        "--append",
        type=path_of,
        metavar="FILE",
        help="add the line to this GENAI_API_KEY_FILE, or make one",
    )
    parser.add_argument("--concurrent", type=positive, metavar="N", help="maximum answers of this key at a time")
    parser.add_argument("--rate", type=positive, metavar="N", help="maximum requests of this key within a minute")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server key`: print a new API key, and the line for GENAI_API_KEY_FILE by which a server recognizes
    it, or add this line to a file (`--append`). `arguments` are the parsed command line. Returns the exit status.

    Raises ConfigurationError if the file cannot be written.
    """
    key = make_key()
    line = line_of(arguments.name, key, arguments.concurrent, arguments.rate)
    if arguments.append is not None:
        append_line(arguments.append, arguments.name, line)
    print(f"key, for {arguments.name} alone:     {key}")
    if arguments.append is None:
        print(f"line for GENAI_API_KEY_FILE: {line}")
    else:
        print(f"its line is in {arguments.append}; a running server reads it on SIGHUP")
    return 0
