"""The command line: `genai-server`."""

import gc
import sys
from importlib import import_module

from genai_server import __version__
from genai_server.cli.parser import Parser
from genai_server.cli.serve.exit_status import OUTPUT_CUT, output_is_cut
from genai_server.errors import ChatFailed, ConfigurationError, ExportFailed, PullFailed

# Subcommands, each with the module that adds it. Those of `tools` and `ray_serve` build on this package, so they are
# imported by name.
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


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; returns the exit status.

    The status is 2 for a wrong setting and 1 for a later failure. It is 141 if the reader of the output has exited, as
    in `genai-server doctor | head -1`.
    """
    try:
        status = _run(sys.argv[1:] if arguments is None else arguments)
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
    parser = Parser(prog="genai-server", description="Serve onnxruntime-genai models over HTTP.")
    parser.add_argument("--version", action="version", version=f"genai-server {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    gc.disable()  # imported objects stay; collections would take a fifth of the time
    for command in _needed(arguments):
        import_module(f"genai_server.{COMMANDS[command]}").add_parser(subparsers)
    gc.enable()
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
    """The named subcommand; all of them if the name is unknown, and none for --version.

    Importing the modules of all subcommands takes most of a second.
    """
    if arguments[:1] == ["--version"]:
        return ()
    return tuple(command for command in COMMANDS if arguments[:1] == [command]) or tuple(COMMANDS)
