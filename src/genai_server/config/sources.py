"""Reads the settings (command line > environment > .env > configuration file > default) and the options of devices."""

import argparse
import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from dotenv import dotenv_values
from pydantic import ValidationError

from genai_server.config.environment import ATTACH_VARIABLE
from genai_server.config.settings import Settings, environment_variable, option
from genai_server.errors import ConfigurationError
from genai_server.messages.launch import EngineSettings
from genai_server.options import config_file
from genai_server.options.device import DeviceOptions
from genai_server.options.session import THREADS
from genai_server.quoted_values import quoted

# The demo model in an installed copy of the server; a clone has it at the setting's default.
BUNDLED_MODEL = Path(__file__).parents[1] / "bundled" / "demo"
# A variable of the scripts that start the server.
_OF_SCRIPTS = "GENAI_EXTRA"
_DEFAULT_MODEL = str(Settings.model_fields["model_dir"].default)
# Maximum characters of a wrong value in a message; a list of models may be long.
_MAX_VALUE = 1000


def load_settings(
    options: Mapping[str, str | None] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    dotenv: Path | None = Path(".env"),
) -> Settings:
    """Merge command line, environment, .env and configuration file into settings. An empty value counts as not given.

    Raises ConfigurationError, whose message names the key as the user wrote it and the value.
    """
    dotenv_variables = dotenv_values(dotenv) if dotenv is not None else {}

    def given(name: str, in_file: Mapping[str, str]) -> tuple[str, str] | None:
        variable = environment_variable(name)
        candidates = (
            (option(name), (options or {}).get(name)),
            (variable, environ.get(variable)),
            (f"{variable} in {dotenv}", dotenv_variables.get(variable)),
            (f"{name} in the configuration file", in_file.get(name)),
        )
        return next(((key, value) for key, value in candidates if value), None)

    path = (given("config", {}) or ("", ""))[1]
    in_file = config_file.file_settings(config_file.read_file(path), Settings.model_fields, path)
    values: dict[str, Any] = {}
    written_as: dict[str, str] = {}
    for name in Settings.model_fields:
        if found := given(name, in_file):
            written_as[name], values[name] = found
    if "model_dir" not in values and BUNDLED_MODEL.is_dir() and not Path(_DEFAULT_MODEL).is_dir():
        values["model_dir"] = str(BUNDLED_MODEL)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        name = str(first["loc"][0])
        field = next(field for field in Settings.model_fields if name in (field, environment_variable(field)))
        shown = "(hidden)" if field in ("admin_api_key", "api_keys") else quoted(values[field], limit=_MAX_VALUE)
        message = first["msg"].removeprefix("Value error, ")
        # A number or a word, such as auto, has an error for each.
        for other in others:
            if other["type"] == "literal_error" and other["loc"][0] == name:
                message += f", or {other['ctx']['expected']}"
        raise ConfigurationError(f"{written_as[field]}={shown}: {message}") from None


def engine_settings(settings: Settings) -> EngineSettings:
    """The settings that all engines share."""
    given = {name: getattr(settings, name) for name in EngineSettings.__struct_fields__}
    others = {
        "cache_dir": str(settings.cache_path or ""),
        "prefix_cache_dir": str(settings.prefix_cache_path),
        "profile_dir": str(settings.profile_dir),
        "max_length": settings.within(None) or 0,
    }
    return EngineSettings(**given | others)


def device_options(
    settings: Settings, model: str | None = None, devices: Sequence[str] | None = None
) -> dict[str, DeviceOptions]:
    """The session and provider options of each device, from the configuration file, overridden by `options`.

    `model` defaults to the first model, `devices` to the configured ones. Raises ConfigurationError.
    """
    sources = [
        config_file.read_file(settings.config),
        config_file.read_text(settings.options, environment_variable("options")),
    ]
    chosen = settings.devices if devices is None else devices
    real = [device for device in chosen if not device.startswith("scripted")]
    found = config_file.device_options(sources, model or next(iter(settings.served)), real)
    for device, options in found.items():
        threads = options.session.get(THREADS, "0")
        if settings.threads and threads not in ("0", str(settings.threads)):
            raise ConfigurationError(
                f"[session] {THREADS}={threads}: {environment_variable('threads')} says {settings.threads} for {device}"
            )
    return found


def unknown_variables(
    environ: Mapping[str, str] = os.environ, *, dotenv: Path | None = Path(".env")
) -> dict[str, str | None]:
    """The variables that look like settings but are unknown, each with the setting that was probably meant."""
    known = [environment_variable(name) for name in Settings.model_fields]
    given = {*environ, *(dotenv_values(dotenv) if dotenv is not None else ())}
    strange = {name for name in given if name.startswith("GENAI_")} - {*known, ATTACH_VARIABLE, _OF_SCRIPTS}
    return {name: next(iter(difflib.get_close_matches(name, known, 1, 0.8)), None) for name in sorted(strange)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser one option for each setting."""
    for name, field in Settings.model_fields.items():
        text = f"{field.description} ({environment_variable(name)}, default: {field.default})".replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(option(name), dest=name, nargs="?", const="true", metavar="true|false", help=text)
        else:
            metavar = "N" if int in (field.annotation, *get_args(field.annotation)) else "TEXT"
            parser.add_argument(option(name), dest=name, metavar=metavar, help=text)
