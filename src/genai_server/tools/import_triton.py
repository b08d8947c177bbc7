"""`genai-server import-triton`: translates a Triton model's config.pbtxt into a configuration file of this server."""

import argparse
from pathlib import Path

from genai_server.errors import ConfigurationError
from genai_server.options.pbtxt import read_pbtxt
from genai_server.options.triton import AUTO_COMPLETE, BACKEND, as_toml, translate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.allow_abbrev = False
    parser.add_argument("config", type=Path, metavar="CONFIG_PBTXT", help="the model's config.pbtxt")
    parser.add_argument(
        "--backend-config",
        action="append",
        default=[],
        metavar="BACKEND,KEY=VALUE",
        help=f"as on Triton's command line, such as {BACKEND},enable-global-threadpool=1; may be repeated",
    )
    parser.add_argument(
        AUTO_COMPLETE,
        dest="is_completed",
        action="store_false",
        help="as on Triton's command line: its default-max-batch-size has no effect then",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the translation, after comments about fields without a counterpart; returns the exit status.

    Raises ConfigurationError if the file cannot be read or translated.
    """
    try:
        text = arguments.config.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ConfigurationError(f"{arguments.config}: cannot be read: {reason}") from None
    config = read_pbtxt(text, str(arguments.config))
    translation = translate(config, arguments.backend_config, is_completed=arguments.is_completed)
    print(as_toml(translation), end="")
    return 0
