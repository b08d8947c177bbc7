"""`genai-server import-triton`: translates the config.pbtxt of a model of NVIDIA's Triton Inference Server into a
configuration file of this server.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from genai_server.errors import ConfigurationError, quoted
from genai_server.options import session
from genai_server.options.device import check_device, flat, provider_options, reaching, unreachable, value_text
from genai_server.options.providers import DEPRECATED, PROVIDERS
from genai_server.options.session import ELSEWHERE, ENTRIES, RUN, SESSION
from genai_server.options.table import Reach, names, nearest, number, possible

# Every value of a field, in order: numbers and words as text.
Message = dict[str, list["str | Message"]]

_WORD = re.compile(r"-?[\w.+-]+")
# Triton's own example for TensorRT continues an accelerator that a brace has closed already.
_SURPLUS_BRACE_HINT = (
    "; if this belongs to the message before, as in Triton's example for TensorRT, remove the '}' that closes it"
)
_CLOSED_BY = {"{": "}", "<": ">"}


def read_pbtxt(text: str, name: str) -> Message:
    """Parse `text` in protobuf's text format (the contents of a config.pbtxt), and return the values of each field by
    the field's name.

    Raises ConfigurationError if the text is not in this format; the error message has the file's name `name`, line and
    column.
    """
    tokenizer: Any = text_format.Tokenizer(text.splitlines())
    try:
        return _message(tokenizer, end="")
    except text_format.ParseError as error:
        raise ConfigurationError(f"{name}:{error}") from None


def messages(values: Iterable["str | Message"]) -> Iterator[Message]:
    """Yield those values of a protobuf field that are messages (with fields of their own); values that are text are
    left out.
    """
    return (value for value in values if isinstance(value, dict))


def _message(tokenizer: Any, end: str) -> Message:
    fields: Message = {}
    while not (tokenizer.AtEnd() if not end else tokenizer.TryConsume(end)):
        if tokenizer.AtEnd():
            raise tokenizer.ParseError(f"expected {quoted(end)}")
        name = tokenizer.ConsumeIdentifier()
        colon = tokenizer.TryConsume(":")
        fields.setdefault(name, []).extend(_values(tokenizer, colon=colon))
        if not tokenizer.TryConsume(","):
            tokenizer.TryConsume(";")
    return fields


def _values(tokenizer: Any, *, colon: bool) -> list["str | Message"]:
    if not tokenizer.TryConsume("["):
        return [_value(tokenizer, colon=colon)]
    values: list[str | Message] = []
    while not tokenizer.TryConsume("]"):
        if values:
            if not tokenizer.TryConsume(","):
                raise tokenizer.ParseError(
                    "expected ',' or ']'" + (_SURPLUS_BRACE_HINT if isinstance(values[-1], dict) else "")
                )
            if tokenizer.TryConsume("]"):
                break
        values.append(_value(tokenizer, colon=colon))
    return values


def _value(tokenizer: Any, *, colon: bool) -> "str | Message":
    for opening, closing in _CLOSED_BY.items():
        if tokenizer.TryConsume(opening):
            return _message(tokenizer, closing)
    if not colon:
        raise tokenizer.ParseError("expected ':' or '{'")
    if tokenizer.token[:1] in "\"'":
        text: str = tokenizer.ConsumeString()
        return text
    word: str = ("-" if tokenizer.TryConsume("-") else "") + tokenizer.token
    if not _WORD.fullmatch(word):
        raise tokenizer.ParseError("expected a value")
    tokenizer.NextToken()
    return word


BACKEND = "onnxruntime"
AUTO_COMPLETE = "--disable-auto-complete-config"
_ROWS = names((*SESSION, *ENTRIES, *ELSEWHERE, *RUN))
_POOL, _BATCH = "enable-global-threadpool", "default-max-batch-size"
_THREADS = ("intra_op_thread_count", "inter_op_thread_count")
# Defaults that Triton's examples state, although not every runner knows the option.
_DEFAULTS = {
    session.THREADS: "0",
    "inter_op_num_threads": "0",
    session.MODE: "sequential",
    session.POOL: "0",
}
_ON_CPUS = ("openvino",)
# A guess: the memory of the card is not known here.
_KV_CACHE_BYTES = 2 * 1024**3
# Texts that TOML allows as keys, and as whole numbers, without quotes.
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
# Fields that describe the model, which the model directory itself does.
_MODEL_DESCRIPTION_FIELDS = {
    "platform": "",
    "backend": "",
    "default_model_filename": "the model directory names its graphs",
    "version_policy": "a model directory has one version",
    "input": "the graph's own inputs are read",
    "output": "the graph's own outputs are read",
    "dynamic_batching": "requests are batched token by token, without waiting for each other",
    "sequence_batching": "a request's keys and values are kept by the server",
    "model_warmup": "the server warms up on its own before it is ready",
    "response_cache": "the server has a prefix cache",
}


@dataclass
class Translation:
    """The configuration of this server to which `translate` translates a Triton configuration: settings, session
    options, devices, execution providers with their options, and notes about what was left out. `as_toml` writes it as
    a file.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    session: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    # The providers of each kind of device, in order.
    providers: dict[str, list[str]] = field(default_factory=dict)
    # The options of each provider.
    provider: dict[str, dict[str, str]] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    # What is left out, and why.
    notes: list[str] = field(default_factory=list)


def translate(config: Message, backend_config: Sequence[str] = (), *, is_completed: bool = True) -> Translation:
    """Translate the contents of a config.pbtxt (`config`, from `read_pbtxt`) and options of Triton's command line to a
    configuration of this server.

    `backend_config` has the values of Triton's option `--backend-config`. `is_completed` says whether Triton adds to
    the configuration what it finds in the model's file; Triton does so unless it runs with
    --disable-auto-complete-config. Raises ConfigurationError for values that Triton would refuse.
    """
    result = Translation()
    for name, values in config.items():
        _field(result, name, values)
    _backend(result, backend_config, is_completed=is_completed)
    _place(result)
    _choose_runner(result)
    return result


def _field(result: Translation, name: str, values: list[Any]) -> None:
    match name:
        case "name":
            result.settings["model_name"] = str(values[-1])
        case "max_batch_size":
            _max_batch_size(result, name, str(values[-1]))
        case "instance_group":
            _instances(result, values)
        case "parameters":
            _parameters(result, values)
        case "optimization":
            _optimization(result, values)
        case "model_operations":
            for operations in messages(values):
                result.libraries += [str(path) for path in operations.get("op_library_filename", [])]
        case _:
            why = _MODEL_DESCRIPTION_FIELDS.get(name, "it has no counterpart here")
            if why:
                result.notes.append(f"{name} is left out: {why}")


def _max_batch_size(result: Translation, name: str, value: str) -> None:
    try:
        size = int(number().text(value))
    except ValueError as error:
        raise ConfigurationError(f"{name}={quoted(value)}: {error}") from None
    if size > 0:  # 0 stands for models that cannot batch
        result.settings["max_batch_size"] = size


def _instances(result: Translation, values: list[Any]) -> None:
    """Add to `result` the devices that Triton's instance groups (`values`) stand for. A number of instances is left out
    with a note, because here a device has one engine, which batches all requests.
    """
    for group in messages(values):
        kind, gpus = str(group.get("kind", ["KIND_AUTO"])[-1]), group.get("gpus", [])
        result.devices += [f"cuda:{gpu}" for gpu in gpus] or {"KIND_CPU": ["cpu"], "KIND_GPU": ["cuda"]}.get(kind, [])
        if str(group.get("count", ["1"])[-1]) != "1":
            result.notes.append("instance_group.count is left out: a device has one engine process, which batches")


def _parameters(result: Translation, values: list[Any]) -> None:
    for name, value in _entries(values).items():
        if name in DEPRECATED:
            options = {name: DEPRECATED[name].get(value, value)}
            result.provider.setdefault("cuda", {})[name] = provider_options("cuda", options).options[name]
            result.notes.append(f"parameter {name} is also deprecated in Triton: it is an option of cuda")
        elif name not in _ROWS:
            result.notes.append(f"parameter {name} is left out: it is unknown{nearest(name, possible(_ROWS))}")
        elif _ROWS[name].impossible:
            result.notes.append(f"parameter {name} is left out: it cannot be set: {_ROWS[name].impossible}")
        else:
            _set(result, name, value)


def _set(result: Translation, name: str, value: str) -> None:
    row = _ROWS[name]
    for option, translated in row.options(value_text(row, name, value, "parameter")).items():
        if _DEFAULTS.get(option) == translated:
            result.session.pop(option, None)
        else:
            result.session[option] = translated


def _entries(values: list[Any]) -> dict[str, str]:
    """Return the entries of a protobuf map (`values`, from `read_pbtxt`) as texts by key. A value in the file may be a
    text, or a message with the field `string_value`.
    """
    result: dict[str, str] = {}
    for entry in messages(values):
        key, value = (entry.get(part, [""])[-1] for part in ("key", "value"))
        if isinstance(value, dict):
            value = str(value.get("string_value", [""])[-1])
        result[str(key)] = value
    return result


def _optimization(result: Translation, values: list[Any]) -> None:
    for optimization in messages(values):
        for graph in messages(optimization.pop("graph", [])):
            for level in graph.get("level", []):
                _set(result, "level", str(level))
        for accelerators in messages(optimization.pop("execution_accelerators", [])):
            for kind in ("gpu_execution_accelerator", "cpu_execution_accelerator"):
                for accelerator in messages(accelerators.get(kind, [])):
                    _accelerator(result, accelerator)
        result.notes += [f"optimization.{name} is left out: it has no counterpart here" for name in optimization]


def _accelerator(result: Translation, accelerator: Message) -> None:
    name = str(accelerator.get("name", [""])[-1])
    if name not in ("tensorrt", "cuda", "openvino"):
        raise ConfigurationError(f"execution accelerator {quoted(name)}: expected one of tensorrt, cuda, openvino")
    options = provider_options(name, _entries(accelerator.get("parameters", []))).options
    result.provider[name] = result.provider.get(name, {}) | options


def _backend(result: Translation, backend_config: Sequence[str], *, is_completed: bool) -> None:
    """Add to `result` what options of Triton's command line stand for: the values of `--backend-config`, and
    --disable-auto-complete-config if `is_completed` is False.
    """
    options = _of_this_backend(backend_config)
    supported = (_POOL, _BATCH, *_THREADS)
    if unknown := [key for key in options if key not in supported]:
        result.notes.append(f"--backend-config {unknown[0]} is left out: it is unknown{nearest(unknown[0], supported)}")
    if not is_completed:
        result.notes.append(
            f"{AUTO_COMPLETE} is left out: a model directory describes its model, and config.pbtxt is not read again"
        )
        if options.pop(_BATCH, None) is not None:
            result.notes.append(f"--backend-config {_BATCH} is left out: Triton ignores it with {AUTO_COMPLETE}")
    if _BATCH in options and "max_batch_size" not in result.settings:
        _max_batch_size(result, f"--backend-config {_BATCH}", options[_BATCH])
    if _POOL in options:
        _set(result, _POOL, options[_POOL])
        if result.session.get(session.POOL) == "1":
            for name in _THREADS:  # with a global pool, Triton ignores the model's own
                if result.session.pop(_ROWS[name].name, None) is not None:
                    result.notes.append(f"parameter {name} is left out: Triton ignores it with a global pool")
                _set(result, name, options.get(name, "0"))


def _of_this_backend(backend_config: Sequence[str]) -> dict[str, str]:
    """Return the options of Triton's backend for ONNX Runtime by key: from values of `--backend-config` such as
    `onnxruntime,KEY=VALUE`. Options for other backends are left out.

    Raises ConfigurationError for a value that has another form.
    """
    options: dict[str, str] = {}
    for text in backend_config:
        backend, comma, assignment = text.partition(",")
        key, equals, value = assignment.partition("=")
        if not comma or not equals:
            raise ConfigurationError(f"--backend-config={text}: expected {BACKEND},KEY=VALUE")
        if backend == BACKEND:
            options[key] = value
    return options


def _place(result: Translation) -> None:
    """Add to `result` its devices, and the order of execution providers for each kind of device.

    If Triton's configuration has no instance groups, its execution accelerators decide the devices. On a GPU, CUDA runs
    the nodes that the other providers cannot run. Accelerators for a kind of device that is not used are left out with
    a note.
    """
    on_gpus = [name for name in result.provider if name not in (*_ON_CPUS, "cuda")]
    orders = {"cpu": [name for name in result.provider if name in _ON_CPUS], "cuda": on_gpus}
    if "cuda" in result.provider or on_gpus:
        orders["cuda"] = [*on_gpus, "cuda"]
    if not result.devices:
        result.devices = ["cuda"] if orders["cuda"] else ["cpu"] if orders["cpu"] else []
    kinds = dict.fromkeys(device.partition(":")[0] for device in result.devices)
    for kind, elsewhere in (("cpu", "GPUs"), ("cuda", "the CPU")):
        for name in orders[kind] if kind not in kinds else []:
            if result.provider.pop(name, None) is not None:
                result.notes.append(f"{name} is left out: all instances are on {elsewhere}")
    result.providers = {kind: [*orders[kind], "cpu"] for kind in kinds if orders[kind]}
    for name, options in result.provider.items():
        if package := PROVIDERS[name].package:
            options["package"] = package
            result.notes.append(f"{name} comes from a package: pip install {package.replace('_', '-')}")


def _choose_runner(result: Translation) -> None:
    """Set the setting `scheduler` of `result` to `batched`, which selects this server's own runner on ONNX Runtime, if
    a GPU is used and one of the translated options has no effect in onnxruntime-genai.
    """
    for kind in {device.partition(":")[0] for device in result.devices} - {"cpu"}:
        order = {"providers": result.providers[kind]} if kind in result.providers else {}
        used = {name: options for name, options in result.provider.items() if name in result.providers.get(kind, ())}
        options = check_device({"session": result.session, "provider": used, **order}, kind)
        if reason := unreachable(options, Reach.GENERATOR):
            result.settings |= {"scheduler": "batched", "kv_cache_bytes": _KV_CACHE_BYTES}
            result.notes.append(f"{reason}: so scheduler is batched, which has not been tested on a GPU")
            result.notes.append("kv_cache_bytes is a guess at the memory on each card for keys and values")
            for reached in reaching(options, Reach.BATCHED).providers:
                for key in [key for key in result.provider.get(reached.name, {}) if key not in reached.options]:
                    del result.provider[reached.name][key]
                    result.notes.append(f"{key} of {reached.name} is left out: it does not reach the batched session")


def as_toml(result: Translation) -> str:
    """Return a translated configuration as the text of a configuration file of this server (TOML), which begins with
    the notes about what was left out as comments.
    """
    lines = [f"# {note}" for note in result.notes]
    lines += [f"{name} = {toml_value(value)}" for name, value in result.settings.items()]
    if result.devices:
        lines.append(f'device = "{",".join(dict.fromkeys(result.devices))}"')
    orders = {kind: f"providers = [{', '.join(map(toml_value, names))}]" for kind, names in result.providers.items()}
    is_alone = len({device.partition(":")[0] for device in result.devices}) == 1
    if is_alone:
        lines += orders.values()
    if result.session or result.libraries:
        lines += ["", "[session]"]
        lines += [f"{toml_key(name)} = {toml_value(value)}" for name, value in flat(result.session).items()]
        if result.libraries:
            lines.append(f"{session.LIBRARIES} = [{', '.join(toml_value(path) for path in result.libraries)}]")
    if not is_alone:
        for kind, order in orders.items():
            lines += ["", f"[devices.{kind}]", order]
    for name, options in result.provider.items():
        if options:
            lines += ["", f"[provider.{name}]"]
            lines += [f"{toml_key(key)} = {toml_value(value)}" for key, value in options.items()]
    return "\n".join(lines).strip() + "\n"


def toml_key(name: str) -> str:
    """Return `name` as a key of a TOML file: without quotes if its characters allow that, otherwise quoted."""
    return name if _PLAIN_KEY.fullmatch(name) else toml_value(name)


def toml_value(value: Any) -> str:
    """Return `value` as a value of a TOML file: as a number if it is a whole number, otherwise as a quoted string."""
    text = str(value)
    if _INTEGER.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server import-triton` to `parser`, and set `run` as the function that
    executes the command.
    """
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
    """Execute `genai-server import-triton`: print the translated configuration as TOML, after comments about what was
    left out. `arguments` are the parsed command line. Returns the exit status.

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
