"""Reads the settings: `load_settings` from the command line, the environment, `.env` and the configuration file, and
`device_options` the options for ONNX Runtime and its execution providers from the configuration file. `add_options`
adds an option for each setting to a command.
"""

import argparse
import difflib
import os
import re
from collections.abc import Container, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from dotenv import dotenv_values
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from genai_server.config.setting_form import FORMER_NAMES, environment_variable, environment_variables, option
from genai_server.config.settings import SETTING_GROUPS, Settings
from genai_server.errors import ConfigurationError, did_you_mean, quoted, rule_of
from genai_server.messages.launch import EngineSpec
from genai_server.options import config_file
from genai_server.options.device import DeviceOptions
from genai_server.options.providers import is_scripted
from genai_server.options.session import THREADS

# The demo model of a wheel, and that of the clone which this is the source of. The setting's default is that of the
# working directory.
_BUNDLED, _OF_CLONE = Path(__file__).parents[1] / "bundled" / "demo", Path(__file__).parents[3] / "models" / "demo"
BUNDLED_MODEL = _BUNDLED if _BUNDLED.is_dir() else _OF_CLONE
# A variable of the scripts that start the server.
_SCRIPT_VARIABLE = "GENAI_EXTRA"
_DEFAULT_MODEL = str(Settings.model_fields["model_dir"].default)
# What the pattern of a setting allows.
_FORMS = {
    "model_name": "must begin with a letter or digit, and have at most 128 letters, digits, dots, dashes, underscores "
    "and slashes",
    "prefix_cache_bytes": "must be auto or a number of bytes",
    "metrics_prefix": "must have letters, digits and underscores, and end with a colon, such as vllm:",
    "kv_events": "must be a ZeroMQ address, such as tcp://*:5557",
    "otlp_endpoint": "must begin with http:// or https://",
}
# All names by which a setting can be given.
NAMES = (*Settings.model_fields, *FORMER_NAMES.values())
# Settings of earlier versions, and what to do instead.
_REMOVED = {
    "prefill_weights": "it was removed: decoders on CPUs have one copy of their weights, which prompts are read with, "
    "too; GENAI_ENCODER_WEIGHTS chooses those of graphs for images and audio",
}
# Values of settings in earlier versions, and what to set instead.
_REMOVED_VALUES = {
    ("scheduler", "library"): "it was removed, because onnxruntime-genai's own engine gives no logits; auto runs the "
    "model in the server's batch where that is possible, and generator runs requests one by one",
}
# Maximum characters of a wrong value in a message; a list of models may be long.
_MAX_VALUE = 1000


def load_settings(
    options: Mapping[str, str | None] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    dotenv: Path | None = Path(".env"),
) -> Settings:
    """Read all settings, check them, and return them. In order of precedence, a value comes from `options` (those of
    the command line, by the setting's name), `environ`, the file `dotenv`, the configuration file, or the default. An
    empty value counts as not given.

    Raises ConfigurationError for a wrong value; the message has the setting's name as the user wrote it, and the value.
    """
    dotenv_variables = dotenv_values(dotenv) if dotenv is not None else {}

    def lookup(name: str, in_file: Mapping[str, str]) -> tuple[str, str] | None:
        names = [name, *([FORMER_NAMES[name]] if name in FORMER_NAMES else [])]
        ranks = zip(*(environment_variables(each) for each in names), strict=True)
        candidates = (
            *((option(each), (options or {}).get(each)) for each in names),
            *(
                candidate
                for variables in ranks
                for candidate in (
                    *((variable, environ.get(variable)) for variable in variables),
                    *((f"{variable} in {dotenv}", dotenv_variables.get(variable)) for variable in variables),
                )
            ),
            *((f"{each} in the configuration file", in_file.get(each)) for each in names),
        )
        return next(((key, value) for key, value in candidates if value), None)

    for name, why in _REMOVED.items():
        if match := lookup(name, {}):
            raise ConfigurationError(f"{match[0]}={quoted(match[1], limit=_MAX_VALUE)}: {why}")
    path = (lookup("config", {}) or ("", ""))[1]
    in_file = config_file.file_settings(config_file.read_file(path), NAMES, path)
    values: dict[str, Any] = {}
    written_as: dict[str, str] = {}
    for name in Settings.model_fields:
        if match := lookup(name, in_file):
            written_as[name], values[name] = match
    if "model_dir" not in values and BUNDLED_MODEL.is_dir() and not Path(_DEFAULT_MODEL).is_dir():
        values["model_dir"] = str(BUNDLED_MODEL)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        field = next(field for field in Settings.model_fields if name in (field, environment_variable(field)))
        shown = "(hidden)" if field in ("admin_api_key", "api_keys") else quoted(values[field], limit=_MAX_VALUE)
        findings = [each for each in error.errors(include_url=False) if each["loc"][0] == name]
        key, space, source = written_as[field].partition(" ")
        raise ConfigurationError(f"{key}={shown}{space}{source}: {_reason(field, findings)}") from None


def _reason(field: str, findings: Sequence[ErrorDetails]) -> str:
    """Return a text for the user that says what is wrong with the value of the setting `field`.

    `findings` are pydantic's errors about the setting. There are several if the value may have one of several types,
    such as a number or a word like `auto`.
    """
    first, *more_findings = findings
    if removed := _REMOVED_VALUES.get((field, str(first.get("input")))):
        return removed
    if first["type"] == "literal_error":
        choices = [str(choice) for choice in get_args(Settings.model_fields[field].annotation)]
        one_of = f"{', '.join(choices[:-1])} or {choices[-1]}"
        return f"must be {one_of}{did_you_mean(str(first['input']), choices)}"
    message = _FORMS[field] if first["type"] == "string_pattern_mismatch" and field in _FORMS else rule_of(first)
    words = [finding["ctx"]["expected"].strip("'") for finding in more_findings if finding["type"] == "literal_error"]
    return ", or ".join([message, *words])


def engine_spec(settings: Settings, device: str, model_dir: str) -> EngineSpec:
    """Return the configuration of an engine (the process that runs a model on a device) as far as it follows from the
    settings. The caller adds the options of the device and the model.
    """
    from_settings = {
        name: getattr(settings, name) for name in EngineSpec.__struct_fields__ if EngineSpec.is_setting(name)
    }
    derived = {
        "cache_dir": str(settings.cache_path or ""),
        "prefix_cache_dir": str(settings.prefix_cache_path),
        "profile_dir": str(settings.profile_dir),
        "max_length": settings.within(None) or 0,
    }
    return EngineSpec(device, model_dir, **from_settings | derived)


def in_typed_names(message: str, options: Mapping[str, object]) -> str:
    """Return an error message in which each setting has the name that the user has typed: environment variables such as
    GENAI_MAX_LENGTH are replaced by command-line options where the user has set them by options.

    `options` are a command's arguments by name; the argument MODEL stands for GENAI_MODEL_DIR.
    """
    typed = {environment_variable(name): option(name) for name in Settings.model_fields if options.get(name)}
    if options.get("model"):
        typed.setdefault(environment_variable("model_dir"), "MODEL")
    return re.sub(r"\b[A-Z_]+\b", lambda match: typed.get(match[0], match[0]), message)


def unserved_tables(settings: Settings) -> list[str]:
    """Return the names of models for which the configuration file has a table `[models.NAME]` although no such model is
    configured, so that the table has no effect. Raises ConfigurationError if the file cannot be read.
    """
    tables = [source.get("models") for source in _option_tables(settings)]
    named = {name for table in tables if isinstance(table, dict) for name in table}
    return sorted(named - settings.served.keys())


def _option_tables(settings: Settings) -> list[dict[str, Any]]:
    return [
        config_file.read_file(settings.config),
        config_file.read_text(settings.options, environment_variable("options")),
    ]


def device_options(
    settings: Settings, model: str | None = None, devices: Sequence[str] | None = None
) -> dict[str, DeviceOptions]:
    """Return the options for ONNX Runtime (session options) and its execution providers that are configured for a
    model, by device. Options in the setting `options` override those in the configuration file.

    `model` defaults to the first configured model, `devices` to the configured devices. Raises ConfigurationError for
    wrong or contradictory options.
    """
    chosen = settings.devices if devices is None else devices
    real = [device for device in chosen if not is_scripted(device)]
    by_device = config_file.device_options(_option_tables(settings), model or next(iter(settings.served)), real)
    for device, options in by_device.items():
        threads = options.session.get(THREADS, "0")
        if settings.threads and threads not in ("0", str(settings.threads)):
            raise ConfigurationError(
                f"[session] {THREADS}={threads}: {environment_variable('threads')} says {settings.threads} for {device}"
            )
    return by_device


def unknown_variables(
    environ: Mapping[str, str] = os.environ, *, dotenv: Path | None = Path(".env")
) -> dict[str, str | None]:
    """Return the variables that begin with GENAI_ but are no settings, so that the user can be warned: each with the
    name of the most similar setting, or None if no setting is similar.

    Variables in the file `dotenv` are returned as `NAME in FILE`.
    """
    setting_names = [environment_variable(name) for name in Settings.model_fields]
    labels = {name: f"{name} in {dotenv}" for name in (dotenv_values(dotenv) if dotenv is not None else ())}
    labels |= {name: name for name in environ}
    accepted = {*chain.from_iterable(map(environment_variables, NAMES)), _SCRIPT_VARIABLE}
    unknown = {name for name in labels if name.startswith("GENAI_")} - accepted
    return {
        labels[name]: next(iter(difflib.get_close_matches(name, setting_names, 1, 0.8)), None)
        for name in sorted(unknown)
    }


def add_options(parser: argparse.ArgumentParser, *, listed: Container[str] = SETTING_GROUPS) -> None:
    """Add a command-line option for each setting to `parser`. All of them can be used, but `--help` shows only those of
    the groups (titles in SETTING_GROUPS) in `listed`.
    """
    for title, names in SETTING_GROUPS.items():
        group = parser.add_argument_group(title.lower())
        for name in names:
            _add_option(group, name, is_listed=title in listed)
    for name in FORMER_NAMES.values():
        parser.add_argument(option(name), dest=name, help=argparse.SUPPRESS)


def _add_option(group: argparse._ArgumentGroup, name: str, *, is_listed: bool) -> None:
    field = Settings.model_fields[name]
    default = "" if field.default in (None, "") else f", default: {str(field.default).removeprefix('./')}"
    text = f"{field.description} ({environment_variable(name)}{default})".replace("%", "%%").replace("`", "")
    shown = text if is_listed else argparse.SUPPRESS
    if field.annotation is bool:
        group.add_argument(option(name), dest=name, nargs="?", const="true", metavar="true|false", help=shown)
        return
    kinds = [get_args(kind) or (kind,) for kind in (field.annotation, *get_args(field.annotation))]
    choices = [kind for alternatives in kinds for kind in alternatives if isinstance(kind, str)]
    is_number = any(kind in (int, float) for alternatives in kinds for kind in alternatives)
    other = "N" if is_number else {"dir": "DIR", "file": "FILE"}.get(name.rpartition("_")[2], "TEXT")
    metavar = "|".join(dict.fromkeys([*([other] if is_number else []), *choices])) or other
    group.add_argument(option(name), dest=name, metavar=metavar, help=shown)
