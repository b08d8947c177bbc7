"""Serve a model over HTTP, until Ctrl-C.

The server answers requests in OpenAI's, Anthropic's and Ollama's formats at http://127.0.0.1:8002, where it also has a
web page. An option can also be set by the environment variable in parentheses, in a file .env, or in genai-server.toml.

Examples:
  genai-server serve microsoft/Phi-4-mini-instruct-onnx
  genai-server serve ./my-model --port 9000 --api-key-file keys.txt
"""

import argparse
import logging
from collections.abc import Container

from genai_server import __version__
from genai_server.config.settings import SETTING_GROUPS, Settings
from genai_server.config.sources import add_options, load_settings, unknown_variables, unserved_tables
from genai_server.logs import configure_logging

log = logging.getLogger(__name__)


# The options that --help lists; --help-all lists all.
_COMMON = tuple(SETTING_GROUPS)[:1]


class _HelpOnAll(argparse.Action):
    """The command-line option --help-all: prints the help of `genai-server serve` with all options and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, option_string: str | None = None
    ) -> None:
        complete = type(parser)(prog=parser.prog, description=parser.description)
        _add_options(complete, SETTING_GROUPS)
        complete.print_help()
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument MODEL and all options of `genai-server serve` to `parser`, of which --help shows the common
    ones, and set `run` as the function that executes the command.
    """
    _add_options(parser, _COMMON)
    num_more = len(Settings.model_fields) - sum(len(SETTING_GROUPS[title]) for title in _COMMON)
    parser.epilog = f"--help-all lists {num_more} more options."


def _add_options(parser: argparse.ArgumentParser, listed: Container[str]) -> None:
    parser.usage = "%(prog)s [MODEL] [OPTION]…"
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a model directory, the name of one in GENAI_MODELS_DIR, or a repository, which is fetched first if "
        "necessary: OWNER/NAME, or OWNER/NAME:FOLDER for one of its models (default: GENAI_MODEL_DIR, or a demo model)",
    )
    parser.add_argument("--help-all", action=_HelpOnAll, nargs=0, help="show all options and exit")
    add_options(parser, listed=listed)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server serve`: fetch the model if necessary, and serve until a stop signal arrives. `arguments`
    are the parsed command line. Returns the exit status.

    Raises ConfigurationError for wrong settings, and PullFailed if the model cannot be fetched.
    """
    settings = load_settings(vars(arguments))
    configure_logging(settings.log_level, settings.log_format)
    for name, suggestion in unknown_variables().items():
        log.warning("%s is not a setting of this server%s", name, f"; did you mean {suggestion}?" if suggestion else "")
    from genai_server.cli.serve.supervisor_start import prepared_supervisor

    with prepared_supervisor() as prepared:
        if arguments.model is not None:
            settings = load_settings({**vars(arguments), "model_dir": _directory(arguments, settings)})
        for name in unserved_tables(settings):
            log.warning("[models.%s] is for a model that is not served; served: %s", name, ", ".join(settings.served))
        served = ", ".join(f"{name} ({path})" for name, path in settings.served.items())
        log.info("genai-server %s starts with %s", __version__, served)
        # After the first line, because this takes most of a second.
        from genai_server.cli.serve.server_lifetime import serve

        return serve(settings, prepared)


def _directory(arguments: argparse.Namespace, settings: Settings) -> str:
    """Return the path of the model directory that the argument MODEL names; a repository is downloaded first. Access
    and address are checked before a download.

    Raises ConfigurationError for wrong settings or an unknown model, and PullFailed if the download fails.
    """
    from genai_server.cli.model_argument import check_no_other, fetched

    check_no_other(arguments.model, arguments.model_dir, settings.models)
    log.info("genai-server %s looks for %s", __version__, arguments.model)
    from genai_server.cli.serve.preflight import bind, check_access
    from genai_server.hub.repository import could_be_repository
    from genai_server.hub.short_names import SHORT_NAMES

    # What cannot be fetched is found or refused now, so that a busy port does not hide a mistyped name.
    is_remote = could_be_repository(arguments.model) or arguments.model in SHORT_NAMES
    directory = None if is_remote else fetched(arguments.model, settings)
    check_access(settings)
    bind(settings).close()
    return str(directory or fetched(arguments.model, settings))
