"""Checks the session and provider options of one device (`check_device`), finds options that have no effect
(`unreachable`), and converts values to the texts that ONNX Runtime and onnxruntime-genai take.

An engine runs a model either with onnxruntime-genai (`Reach.GENERATOR`), or in its own ONNX Runtime sessions, in which
requests run as a batch (`Reach.BATCHED`). Some options exist in only one of the two. The options themselves are listed
in session.py and providers.py.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from genai_server.errors import ConfigurationError, quoted
from genai_server.options import session
from genai_server.options.providers import CPU, DEPRECATED, PROVIDERS, provider
from genai_server.options.table import Reach, Row, Value, names, nearest, possible

SECTIONS = ("session", "provider", "providers")
_ENTRY_ROWS = names((*session.ENTRIES, *session.ELSEWHERE))
_RUN_ROWS = names(session.RUN)
_CUDA_DEVICES = ("cuda", "tensorrt")
# Providers that number the same devices.
_NVIDIA = ("cuda", "tensorrt", "nv_tensorrt_rtx")
_SOURCES = ("library", "package")
# The providers' names for the number of a device.
_INDICES = ("device_id", "device_index", "deviceId")


class ProviderOptions(Struct, frozen=True):
    """An execution provider of ONNX Runtime that a device uses, with its options. Names and values are texts as the
    provider itself uses them.
    """

    name: str
    options: dict[str, str] = {}
    # The path of the library of a provider that is not built in.
    library: str = ""
    # The Python package that contains such a library.
    package: str = ""


class DeviceOptions(Struct, frozen=True):
    """The checked options of the ONNX Runtime sessions on one device, by ONNX Runtime's names, and its execution
    providers. All values are text. `check_device` creates it from the configuration; the engine applies it.
    """

    # Options that are fields of ONNX Runtime's SessionOptions.
    session: dict[str, str] = {}
    # Session configuration entries, which are added by name.
    entries: dict[str, str] = {}
    # Run options, for every run of the model.
    run: dict[str, str] = {}
    custom_op_libraries: list[str] = []
    # The execution providers, in the order in which they may choose nodes of the graph; the CPU runs the rest.
    providers: list[ProviderOptions] = []
    warnings: list[str] = []


DEFAULT_OPTIONS = DeviceOptions()
_SESSION_ROWS = names(session.SESSION)


def unreachable(options: DeviceOptions, runner: Reach) -> str | None:
    """Return a sentence for operators about the first option that has no effect if `runner` (onnxruntime-genai or the
    batched sessions) runs the model; None if all options have an effect.
    """
    for name in options.session:
        if _misses(_SESSION_ROWS[name], runner):
            return f"[session] {name} reaches only {_where(_SESSION_ROWS[name].reach)}"
    for ep in options.providers:
        definition = PROVIDERS.get(ep.name)
        if definition is None:
            continue
        if definition.genai is None and runner is Reach.GENERATOR:
            return f"provider {ep.name} reaches only {_where(Reach.BATCHED)}"
        rows = names(definition.rows)
        for key in ep.options:
            if _misses(rows[key], runner):
                why = f": {rows[key].why}" if rows[key].why else ""
                return f"[provider.{ep.name}] {key} reaches only {_where(rows[key].reach)}{why}"
    return None


def without_spinning_between_passes(options: DeviceOptions) -> DeviceOptions:
    """Return a copy of the options that also makes idle threads of a session stop spinning at the end of each run of
    the model. This is for models that share processor cores.

    If the operator has set `session.force_spinning_stop`, that value stays.
    """
    return msgspec.structs.replace(options, entries={session.SPINNING_STOP: "1", **options.entries})


def reaching(options: DeviceOptions, runner: Reach) -> DeviceOptions:
    """Return a copy of the options without those that have no effect if `runner` (onnxruntime-genai or the batched
    sessions) runs the model.
    """
    providers = []
    for ep in options.providers:
        definition = provider(ep.name)
        if definition.genai is None and runner is Reach.GENERATOR:
            continue
        rows = names(definition.rows)
        effective = {
            key: value for key, value in ep.options.items() if key not in rows or not _misses(rows[key], runner)
        }
        providers.append(msgspec.structs.replace(ep, options=effective))
    effective = {name: value for name, value in options.session.items() if not _misses(_SESSION_ROWS[name], runner)}
    return msgspec.structs.replace(options, session=effective, providers=providers)


def device_id(options: DeviceOptions) -> int:
    """Return the number of the device among the devices of its kind, such as 1 for `cuda:1`: the option `device_id` of
    the first execution provider, or 0.
    """
    ep_options = next((ep.options for ep in options.providers), {})
    return int(ep_options.get("device_id", "0"))


def _misses(row: Row, runner: Reach) -> bool:
    return row.reach not in (Reach.BOTH, runner)


def _where(reach: Reach) -> str:
    return "the batched session" if reach is Reach.BATCHED else "onnxruntime-genai's model"


def check_device(sections: Mapping[str, Any], device: str) -> DeviceOptions:
    """Check the tables of options that apply to a device, and return them as options.

    `sections` has the merged tables `session`, `provider` and `providers` of the configuration file; each may be
    missing. Raises ConfigurationError, whose message names section, key and value; for an unknown key it suggests the
    most similar known one.
    """
    session_options = flat(_table(sections.get("session", {}), "[session]"))
    tables = {
        name: _table(table, f"[provider.{name}]")
        for name, table in _table(sections.get("provider", {}), "[provider]").items()
    }
    libraries = _libraries(session_options.pop(session.LIBRARIES, []))
    warnings: list[str] = []
    for name in [name for name in session_options if name in DEPRECATED]:
        if device.partition(":")[0] not in _CUDA_DEVICES:
            raise ConfigurationError(
                f"[session] {name}={quoted(session_options[name])}: it is an option of cuda, not of {device}"
            )
        value = str(session_options.pop(name))
        tables["cuda"] = {name: DEPRECATED[name].get(value, value)} | tables.get("cuda", {})
        warnings.append(f"[session] {name} is deprecated: write it in [provider.cuda]")
    options = DeviceOptions(
        session=_read(session_options, _SESSION_ROWS),
        entries=_read(session_options, _ENTRY_ROWS),
        run=_read(session_options, _RUN_ROWS),
        custom_op_libraries=libraries,
        providers=_providers(sections.get("providers"), tables, device),
        warnings=warnings,
    )
    if session_options:
        name, value = next(iter(session_options.items()))
        supported = {*possible(_SESSION_ROWS), *possible(_ENTRY_ROWS), *possible(_RUN_ROWS), session.LIBRARIES}
        raise ConfigurationError(f"[session] {name}={quoted(value)}: unknown option{nearest(name, supported)}")
    _check_together(options, warnings)
    return options


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a copy of `table` in which the entries of nested tables have joined names: `{"session": {"intra_op": 1}}`
    becomes `{"session.intra_op": 1}`.

    ONNX Runtime's option names contain dots, which TOML reads as nested tables unless they are quoted. `prefix` is put
    in front of each name.
    """
    flattened: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flattened |= flat(value, f"{prefix}{name}.")
        else:
            flattened[prefix + name] = value
    return flattened


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where}: expected a table, not {quoted(value)}")
    return dict(value)


def _read(table: dict[str, Any], rows: Mapping[str, Row]) -> dict[str, str]:
    """Remove from `table`, the table `[session]` of the configuration, the options that `rows` describes, and return
    their values as text, by ONNX Runtime's names.

    Raises ConfigurationError for an invalid value.
    """
    options: dict[str, str] = {}
    for name in [name for name in table if name in rows]:
        row, value = rows[name], table.pop(name)
        _add(options, row, name, value, "[session]")
    return options


def _add(options: dict[str, str], row: Row, name: str, value: Value, where: str) -> None:
    """Add to `options` the options of ONNX Runtime, as text, that the configured option `name` sets with this value.
    `row` describes the option.

    Raises ConfigurationError if the value is invalid, or if `options` already has one of these options. `where` is the
    section of the configuration, which the message names.
    """
    added = row.options(value_text(row, name, value, where))
    if repeated := sorted(added.keys() & options.keys()):
        raise ConfigurationError(f"{where} {name}={quoted(value)}: {repeated[0]} is given twice")
    options.update(added)


def value_text(row: Row, name: str, value: Value, where: str) -> str:
    """Return the configured value of an option as the text that ONNX Runtime takes. `row` describes the option.

    Raises ConfigurationError if the value is invalid or the option cannot be set. The message names the option by
    `name` and its section of the configuration by `where`.
    """
    if row.impossible:
        raise ConfigurationError(f"{where} {name}={quoted(value)}: it cannot be set: {row.impossible}")
    try:
        return row.kind.text(value)
    except ValueError as error:
        raise ConfigurationError(f"{where} {name}={quoted(value)}: {error}") from None


def _libraries(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(path, str) and path for path in value):
        raise ConfigurationError(f"[session] {session.LIBRARIES}={quoted(value)}: expected a list of paths")
    return value


def _providers(order: Any, tables: Mapping[str, dict[str, Any]], device: str) -> list[ProviderOptions]:
    """Return a device's execution providers with their options, in the order in which ONNX Runtime offers the nodes of
    a graph to them. The CPU, which is always last, is left out.

    `order` is the configured list of names; None stands for the device's default. `tables` has the tables
    `[provider.NAME]` by name; those that `order` lacks are checked but left out. Raises ConfigurationError for invalid
    names and options.
    """
    kind, _, index = device.partition(":")
    if order is None:
        order = [kind, *PROVIDERS[kind].fallback] if kind in PROVIDERS else []
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise ConfigurationError(f"providers={quoted(order)}: expected a list of names")
    if len(set(order)) < len(order):
        raise ConfigurationError(f"providers={quoted(order)}: a provider is named twice")
    if CPU in order[:-1]:
        raise ConfigurationError(
            f"providers={quoted(order)}: {CPU} must be last, since it leaves nothing to the others"
        )
    checked = {name: provider_options(name, table) for name, table in tables.items()}
    for name in order:
        if name not in PROVIDERS and not any(tables.get(name, {}).get(source) for source in _SOURCES):
            raise ConfigurationError(
                f"providers={quoted(order)}: {name} is unknown, and [provider.{name}] has no library or package"
                f"{nearest(name, PROVIDERS)}"
            )
    if kind in PROVIDERS and kind != CPU and kind not in order:
        raise ConfigurationError(f"providers={quoted(order)}: {kind} is missing, and device {device} runs on it")
    providers = [checked.get(name, ProviderOptions(name)) for name in order if name != CPU]
    family = _NVIDIA if kind in _NVIDIA else (kind,)
    return [_with_index(provider, index) if index and provider.name in family else provider for provider in providers]


def on_providers(options: DeviceOptions, device: str) -> DeviceOptions:
    """Return the options, with the default execution providers of `device` added if the options name none."""
    return msgspec.structs.replace(options, providers=options.providers or _providers(None, {}, device))


def _with_index(options: ProviderOptions, index: str) -> ProviderOptions:
    """Return a provider's options with the option for the number of the device set to `index`, as in `cuda:1`. A
    provider without such an option is returned unchanged.

    Raises ConfigurationError if the operator has set another number.
    """
    key = next((key for key in _INDICES if key in names(provider(options.name).rows)), None)
    if key is None:
        return options
    if options.options.get(key, index) != index:
        raise ConfigurationError(
            f"[provider.{options.name}] {key}={quoted(options.options[key])}: the device's is {index}"
        )
    return ProviderOptions(options.name, options.options | {key: index}, options.library, options.package)


def provider_options(name: str, table: Mapping[str, Any]) -> ProviderOptions:
    """Check `table`, which is the table `[provider.NAME]` of an execution provider in the configuration, and return its
    options.

    The options of a provider that is loaded from a library or a Python package are unknown to this server, and are
    passed on unchecked. Raises ConfigurationError for an unknown provider or option, or an invalid value.
    """
    where = f"[provider.{name}]"
    sources = {source: str(table[source]) for source in _SOURCES if table.get(source)}
    configured = flat({key: value for key, value in table.items() if key not in _SOURCES})
    if name not in PROVIDERS:
        if not sources:
            raise ConfigurationError(f"{where}: unknown provider{nearest(name, PROVIDERS)}")
        return ProviderOptions(name, {key: str(value) for key, value in configured.items()}, **sources)
    rows = names(PROVIDERS[name].rows)
    options: dict[str, str] = {}
    for key, value in configured.items():
        row = rows.get(key)
        if row is None:
            why = f"unknown option{nearest(key, possible(rows))}" if rows else f"{name} has no options of its own"
            raise ConfigurationError(f"{where} {key}={quoted(value)}: {why}")
        _add(options, row, key, value, where)
    return ProviderOptions(name, options, **sources)


def _check_together(options: DeviceOptions, warnings: list[str]) -> None:
    """Check options of a device that depend on each other.

    Raises ConfigurationError if options exclude each other. For each option that has no effect because of another one,
    a sentence for operators is appended to `warnings`.
    """
    shrinking = options.run.get(session.SHRINKAGE, "")
    if "cpu" in shrinking and options.session.get(session.ARENA) == "0":
        raise ConfigurationError(
            f"[session] {session.SHRINKAGE}={quoted(shrinking)}: without {session.ARENA} there is nothing to shrink"
        )
    if options.session.get(session.MODE) != "parallel" and int(options.session.get("inter_op_num_threads", "0")) > 1:
        warnings.append(f"[session] inter_op_num_threads has no effect: {session.MODE} is not parallel")
