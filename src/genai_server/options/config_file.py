"""Reads the configuration file, genai-server.toml, which has settings by name, and tables with the options of ONNX
Runtime's sessions and execution providers.

A table of options may stand at the top level, below a device (`[devices.cuda.session]`, `[devices."cuda:1".session]`),
below a model (`[models.NAME.session]`), or below a device of a model. If several tables set the same key, the most
specific table wins. The tables of tool servers (`[mcp.NAME]`) are read by config/tool_servers.py.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genai_server.errors import ConfigurationError, quoted
from genai_server.options.device import SECTIONS, DeviceOptions, check_device
from genai_server.options.table import nearest

DEFAULT_FILE = "genai-server.toml"
_SCOPES = ("devices", "models")
# Tables that config/tool_servers.py reads.
_OTHERS = ("mcp",)


def read_file(path: str) -> dict[str, Any]:
    """Return the contents of the configuration file at `path`. If `path` is empty, `genai-server.toml` in the working
    directory is read; if there is no such file, the result is empty.

    Raises ConfigurationError if the file cannot be read or is not TOML.
    """
    file = Path(path or DEFAULT_FILE)
    if not path and not file.exists():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise ConfigurationError(f"{file}: is not TOML: {error}") from None


def read_text(text: str, written_as: str) -> dict[str, Any]:
    """Return the tables of session and provider options in `text`, which is TOML, such as the value of the command-line
    option `--options`.

    Raises ConfigurationError if the text is not TOML or has an unknown table. The message begins with `written_as`,
    which says where the text comes from.
    """
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{written_as}: is not TOML: {error}") from None
    if unknown := sorted(tables.keys() - {*SECTIONS, *_SCOPES}):
        raise ConfigurationError(f"{written_as}: {unknown[0]}: unknown{nearest(unknown[0], (*SECTIONS, *_SCOPES))}")
    return tables


def file_settings(tables: Mapping[str, Any], setting_names: Sequence[str], path: str) -> dict[str, str]:
    """Return the settings in the configuration file by name, with each value as the text that an environment variable
    would have.

    `tables` has the contents of the file, and `setting_names` the names of all settings. `path` is the file's path for
    messages. Raises ConfigurationError for an unknown name, and for a value that is a list or a table.
    """
    settings: dict[str, str] = {}
    for name, value in tables.items():
        if name in (*SECTIONS, *_SCOPES, *_OTHERS):
            continue
        if name not in setting_names:
            names = (*setting_names, *SECTIONS, *_SCOPES, *_OTHERS)
            raise ConfigurationError(f"{path or DEFAULT_FILE}: {name}: unknown setting{nearest(name, names)}")
        if name == "config":
            raise ConfigurationError(f"{path or DEFAULT_FILE}: {name}={quoted(value)}: a file cannot name another")
        if not isinstance(value, str | int | float | bool):
            raise ConfigurationError(f"{path or DEFAULT_FILE}: {name}={quoted(value)}: expected one value")
        settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return settings


def device_options(
    sources: Sequence[Mapping[str, Any]], model: str, devices: Sequence[str]
) -> dict[str, DeviceOptions]:
    """Return the session and provider options of a model on each of its devices, by device.

    `sources` has the contents of configuration files or texts, of which later ones override earlier ones. Raises
    ConfigurationError for an invalid option, and for options of a provider that none of the devices uses.
    """
    merged: dict[str, dict[str, Any]] = {device: {} for device in devices}
    for device, tables in ((device, tables) for tables in sources for device in devices):
        for scope in _scopes(tables, model, device):
            sections = {name: scope[name] for name in SECTIONS if name in scope}
            merged[device] = merge(merged[device], sections)
    checked = {device: check_device(merged[device], device) for device in devices}
    used = {provider.name for options in checked.values() for provider in options.providers}
    configured = {name for tables in merged.values() for name in tables.get("provider", {})}
    if unused := sorted(configured - used):
        raise ConfigurationError(f"[provider.{unused[0]}]: none of the devices {', '.join(devices)} uses it")
    return checked


def _scopes(tables: Mapping[str, Any], model: str, device: str) -> list[Mapping[str, Any]]:
    """Return the tables of a configuration that apply to a model on a device, the most specific one last. `tables` is
    the whole configuration.

    Raises ConfigurationError if one of these tables has an unknown key.
    """
    model_table = _part(tables, "models", model)
    scopes = [tables]
    for scoped in (tables, model_table):
        if scoped is model_table:
            scopes.append(model_table)
        scopes += [_part(scoped, "devices", name) for name in dict.fromkeys((device.partition(":")[0], device))]
    for scope in scopes[1:]:
        if unknown := sorted(scope.keys() - {*SECTIONS, *_SCOPES}):
            raise ConfigurationError(
                f"[devices.…] or [models.…]: {unknown[0]}: unknown{nearest(unknown[0], (*SECTIONS, *_SCOPES))}"
            )
    return scopes


def _part(tables: Mapping[str, Any], scope: str, name: str) -> Mapping[str, Any]:
    parts = tables.get(scope, {})
    table = parts.get(name, {}) if isinstance(parts, Mapping) else parts
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"[{scope}.{name}]: expected a table, not {quoted(table)}")
    return table


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new table with the entries of both tables. If both have a key, the value of `over` is taken; if both
    values are tables, they are merged in turn.
    """
    both = dict(under)
    for name, value in over.items():
        inner = both.get(name)
        both[name] = merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both
