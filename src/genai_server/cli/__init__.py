"""The command line `genai-server`: `main` parses the arguments and runs a command. The table of all commands is in
commands.py.
"""

import sys

from genai_server import __version__
from genai_server.cli.commands import add_commands
from genai_server.cli.parser import SuggestingParser
from genai_server.cli.serve.exit_status import OUTPUT_CUT, output_is_cut
from genai_server.cli.standard_streams import replace_unencodable
from genai_server.errors import ConfigurationError, GenaiServerError

_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run the command that `arguments` name, by default those of this process, and return the exit status.

    The status is 2 for a wrong setting, 1 for a later failure and 130 after Ctrl-C. It is 141 if the reader of the
    output has exited, as in `genai-server doctor | head -1`.
    """
    replace_unencodable()
    try:
        status = _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # commands that have something to finish catch it themselves
        print(file=sys.stderr)
        return _INTERRUPTED
    except OSError:
        if not output_is_cut(probe="\n"):
            raise
        return OUTPUT_CUT
    except SystemExit:
        if not output_is_cut():
            raise
        return OUTPUT_CUT
    return OUTPUT_CUT if output_is_cut() else status


def _run(arguments: list[str]) -> int:
    parser = SuggestingParser(
        prog="genai-server",
        usage="%(prog)s COMMAND [OPTION]…",
        description="Serve onnxruntime-genai models over HTTP. genai-server COMMAND --help describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"genai-server {__version__}")
    add_commands(parser, arguments)
    if not arguments:
        parser.print_help()
        return 0
    options = parser.parse_args(arguments)
    if "run" not in options:  # checked here, because argparse would not get to an option that is not known
        parser.error("the following arguments are required: COMMAND")
    try:
        status: int = options.run(options)
    except ConfigurationError as error:
        from genai_server.config.sources import in_typed_names

        print(f"genai-server: {in_typed_names(error.message, vars(options))}", file=sys.stderr)
        return 2
    except GenaiServerError as error:
        print(f"genai-server: {error}", file=sys.stderr)
        return 1
    return status
