"""Translates a model's configuration of Triton's ONNX Runtime backend into ours."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from genai_server.errors import ConfigurationError
from genai_server.options import session
from genai_server.options.check import flat, provider_options
from genai_server.options.cuda import DEPRECATED, SEARCHES, STRATEGIES
from genai_server.options.pbtxt import Message, messages
from genai_server.options.session import ENTRIES, RUN, SESSION
from genai_server.options.table import names, nearest
from genai_server.options.toml import toml_key, toml_value
from genai_server.options.values import number

BACKEND = "onnxruntime"
_MOVED = {"cudnn_conv_algo_search": SEARCHES, "arena_extend_strategy": STRATEGIES}
_ROWS = names((*SESSION, *ENTRIES, *RUN))
_POOL, _BATCH = "enable-global-threadpool", "default-max-batch-size"
_THREADS = ("intra_op_thread_count", "inter_op_thread_count")
# Fields that say where and what the model is, and that our model directory says itself.
_OF_THE_MODEL = {
    "platform": "",
    "backend": "",
    "default_model_filename": "the model directory names its graphs",
    "version_policy": "a model directory has one version",
    "input": "the graph's own are read",
    "output": "the graph's own are read",
    "dynamic_batching": "requests are batched token by token, without waiting for each other",
    "sequence_batching": "a request's keys and values are kept by the server",
    "model_warmup": "the server warms up by itself before it is ready",
    "response_cache": "pasts of prompts are used again by the server",
}


@dataclass
class Translation:
    """Tables of our configuration, and what had no place in them."""

    settings: dict[str, Any] = field(default_factory=dict)
    session: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    providers: list[str] = field(default_factory=list)
    provider: dict[str, dict[str, str]] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def translate(config: Message, backend_config: Sequence[str] = ()) -> Translation:
    """The same in our names and ONNX Runtime's values. Raises ConfigurationError for what Triton would refuse, too."""
    found = Translation()
    for name, values in config.items():
        _field(found, name, values)
    _backend(found, backend_config)
    if set(found.devices) == {"cpu"}:
        for name in [name for name in _order(found) if name != "openvino"]:
            found.provider.pop(name, None)
            found.providers = [kept for kept in found.providers if kept != name]
            found.notes.append(f"{name} is left out: all instances are on the CPU")
    return found


def _field(found: Translation, name: str, values: list[Any]) -> None:
    match name:
        case "name":
            found.settings["model_name"] = str(values[-1])
        case "max_batch_size":
            _max_batch_size(found, name, str(values[-1]))
        case "instance_group":
            _instances(found, values)
        case "parameters":
            _parameters(found, values)
        case "optimization":
            _optimization(found, values)
        case "model_operations":
            for operations in messages(values):
                found.libraries += [str(path) for path in operations.get("op_library_filename", [])]
        case _:
            why = _OF_THE_MODEL.get(name, "it has no counterpart here")
            if why:
                found.notes.append(f"{name} is left out: {why}")


def _max_batch_size(found: Translation, name: str, value: str) -> None:
    try:
        size = int(number().text(value))
    except ValueError as error:
        raise ConfigurationError(f"{name}={value!r}: {error}") from None
    if size > 0:  # 0 is for models that cannot batch
        found.settings["max_batch_size"] = size


def _instances(found: Translation, values: list[Any]) -> None:
    """On which devices; how many of them on each is no question here, for one engine batches."""
    for group in messages(values):
        kind, gpus = str(group.get("kind", ["KIND_AUTO"])[-1]), group.get("gpus", [])
        found.devices += [f"cuda:{gpu}" for gpu in gpus] or {"KIND_CPU": ["cpu"], "KIND_GPU": ["cuda"]}.get(kind, [])
        if str(group.get("count", ["1"])[-1]) != "1":
            found.notes.append("instance_group.count is left out: a device has one engine process, which batches")


def _parameters(found: Translation, values: list[Any]) -> None:
    for name, value in _entries(values).items():
        if name in DEPRECATED:
            found.provider.setdefault("cuda", {})[name] = _checked("cuda", name, _MOVED.get(name, {}).get(value, value))
            found.notes.append(f"parameter {name} is deprecated in Triton, too: it is an option of cuda")
        elif name in _ROWS:
            _set(found, name, value)
        else:
            found.notes.append(f"parameter {name} is left out: it is unknown{nearest(name, _ROWS)}")


def _set(found: Translation, name: str, value: str) -> None:
    row = _ROWS[name]
    try:
        text = row.kind.text(value)
    except ValueError as error:
        raise ConfigurationError(f"parameter {name}={value!r}: {error}") from None
    if not (name in _THREADS and text == "0"):  # which is the default of both
        found.session[row.name] = text


def _checked(provider: str, name: str, value: str) -> str:
    """ONNX Runtime's text of a value."""
    return provider_options(provider, {name: value}).options[name]


def _entries(values: list[Any]) -> dict[str, str]:
    """A map of protobuf: each entry is a message of key and value, which may be one with a `string_value`."""
    found: dict[str, str] = {}
    for entry in messages(values):
        key, value = (entry.get(part, [""])[-1] for part in ("key", "value"))
        if isinstance(value, dict):
            value = str(value.get("string_value", [""])[-1])
        found[str(key)] = value
    return found


def _optimization(found: Translation, values: list[Any]) -> None:
    for optimization in messages(values):
        for graph in messages(optimization.pop("graph", [])):
            for level in graph.get("level", []):
                _set(found, "level", str(level))
        for accelerators in messages(optimization.pop("execution_accelerators", [])):
            for kind in ("gpu_execution_accelerator", "cpu_execution_accelerator"):
                for accelerator in messages(accelerators.get(kind, [])):
                    _accelerator(found, accelerator)
        found.notes += [f"optimization.{name} is left out: it has no counterpart here" for name in optimization]


def _accelerator(found: Translation, accelerator: Message) -> None:
    name = str(accelerator.get("name", [""])[-1])
    if name not in ("tensorrt", "cuda", "openvino"):
        raise ConfigurationError(f"execution accelerator {name!r}: expected is one of tensorrt, cuda, openvino")
    options = provider_options(name, _entries(accelerator.get("parameters", []))).options
    found.provider[name] = found.provider.get(name, {}) | options
    found.providers.append(name)


def _backend(found: Translation, backend_config: Sequence[str]) -> None:
    """The command line's `BACKEND,KEY=VALUE`; those of other backends are not ours."""
    given: dict[str, str] = {}
    for text in backend_config:
        backend, comma, rest = text.partition(",")
        key, equals, value = rest.partition("=")
        if not comma or not equals:
            raise ConfigurationError(f"--backend-config={text}: expected is {BACKEND},KEY=VALUE")
        if backend == BACKEND:
            given[key] = value
    known = (_POOL, _BATCH, *_THREADS)
    if strange := [key for key in given if key not in known]:
        found.notes.append(f"--backend-config {strange[0]} is left out: it is unknown{nearest(strange[0], known)}")
    if _BATCH in given and "max_batch_size" not in found.settings:
        _max_batch_size(found, f"--backend-config {_BATCH}", given[_BATCH])
    if _POOL in given:
        _set(found, _POOL, given[_POOL])
        if found.session[session.POOL] == "1":
            for name in _THREADS:  # Triton ignores the model's own beside a global pool
                if found.session.pop(_ROWS[name].name, None) is not None:
                    found.notes.append(f"parameter {name} is left out: beside a global pool Triton ignores it")
                _set(found, name, given.get(name, "0"))


def as_toml(found: Translation) -> str:
    """The configuration file's text."""
    lines = [f"# {note}" for note in found.notes]
    lines += [f"{name} = {toml_value(value)}" for name, value in found.settings.items()]
    order = _order(found)
    devices = ",".join(dict.fromkeys(found.devices)) or ("cuda" if "cuda" in order else "cpu" if order else "")
    if devices:
        lines.append(f'device = "{devices}"')
    if order:
        lines.append(f"providers = [{', '.join(toml_value(name) for name in [*order, 'cpu'])}]")
    if found.session or found.libraries:
        lines += ["", "[session]"]
        lines += [f"{toml_key(name)} = {toml_value(value)}" for name, value in flat(found.session).items()]
        if found.libraries:
            lines.append(f"{session.LIBRARIES} = [{', '.join(toml_value(path) for path in found.libraries)}]")
    for name in order:
        if found.provider.get(name):
            lines += ["", f"[provider.{name}]"]
            lines += [f"{toml_key(key)} = {toml_value(value)}" for key, value in found.provider[name].items()]
    return "\n".join(lines).strip() + "\n"


def _order(found: Translation) -> list[str]:
    """The accelerators as they were given; on a GPU, CUDA takes what they leave."""
    order = list(dict.fromkeys([*found.providers, *found.provider]))
    if any(name != "openvino" for name in order) and "cuda" not in order:
        order.append("cuda")
    return order
