"""The session and provider options of one device, and which of them have an effect.

An engine runs a model either with onnxruntime-genai (`Reach.GENERATOR`), or in its own ONNX Runtime sessions, in which
requests run as a batch (`Reach.BATCHED`). Some options exist in only one of the two.
"""

import msgspec
from msgspec import Struct

from genai_server.options import session
from genai_server.options.providers import PROVIDERS, provider
from genai_server.options.table import Reach, Row, names


class ProviderOptions(Struct, frozen=True):
    """An execution provider and its options, with the names and text values that the provider itself uses."""

    name: str
    options: dict[str, str] = {}
    # The path of the library of a provider that is not built in.
    library: str = ""
    # The Python package that contains such a library.
    package: str = ""


class DeviceOptions(Struct, frozen=True):
    """The checked options of the ONNX Runtime sessions on one device, by ONNX Runtime's names. All values are text."""

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
    """Return a sentence about the first option that has no effect if `runner` runs the model, with the reason; None if
    all options have an effect.
    """
    for name in options.session:
        if _misses(_SESSION_ROWS[name], runner):
            return f"[session] {name} reaches only {_where(_SESSION_ROWS[name].reach)}"
    for given in options.providers:
        known = PROVIDERS.get(given.name)
        if known is None:
            continue
        if known.genai is None and runner is Reach.GENERATOR:
            return f"provider {given.name} reaches only {_where(Reach.BATCHED)}"
        rows = names(known.rows)
        for key in given.options:
            if _misses(rows[key], runner):
                why = f": {rows[key].why}" if rows[key].why else ""
                return f"[provider.{given.name}] {key} reaches only {_where(rows[key].reach)}{why}"
    return None


def without_spinning_between_passes(options: DeviceOptions) -> DeviceOptions:
    """Return the options with one addition: idle threads of a session stop spinning at the end of each run of the
    model. This is for models that share processor cores.

    If the operator has set `session.force_spinning_stop`, that value stays.
    """
    return msgspec.structs.replace(options, entries={session.SPINNING_STOP: "1", **options.entries})


def reaching(options: DeviceOptions, runner: Reach) -> DeviceOptions:
    """Return the options without those that have no effect if `runner` runs the model."""
    providers = []
    for given in options.providers:
        known = provider(given.name)
        if known.genai is None and runner is Reach.GENERATOR:
            continue
        rows = names(known.rows)
        effective = {
            key: value for key, value in given.options.items() if key not in rows or not _misses(rows[key], runner)
        }
        providers.append(msgspec.structs.replace(given, options=effective))
    effective = {name: value for name, value in options.session.items() if not _misses(_SESSION_ROWS[name], runner)}
    return msgspec.structs.replace(options, session=effective, providers=providers)


def device_id(options: DeviceOptions) -> int:
    """Return the device's number among devices of its kind: the option `device_id` of the first execution provider, 0
    by default.
    """
    given = next((one.options for one in options.providers), {})
    return int(given.get("device_id", "0"))


def _misses(row: Row, runner: Reach) -> bool:
    return row.reach not in (Reach.BOTH, runner)


def _where(reach: Reach) -> str:
    return "the batched session" if reach is Reach.BATCHED else "onnxruntime-genai's model"
