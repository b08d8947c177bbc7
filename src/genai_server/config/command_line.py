"""The settings as options of a command."""

import argparse
from typing import get_args

from genai_server.config.settings import Settings, environment_variable, option


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser one option for each setting."""
    for name, field in Settings.model_fields.items():
        text = f"{field.description} ({environment_variable(name)}, default: {field.default})".replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(option(name), dest=name, nargs="?", const="true", metavar="true|false", help=text)
        else:
            metavar = "N" if int in (field.annotation, *get_args(field.annotation)) else "TEXT"
            parser.add_argument(option(name), dest=name, metavar=metavar, help=text)
