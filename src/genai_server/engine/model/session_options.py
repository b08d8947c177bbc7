"""Passes the options of a device to ONNX Runtime, as SessionOptions (`session_options`), and to onnxruntime-genai, as
configuration (`genai_overlay`, `configure_providers`); and opens sessions with them (`open_with`).

Each of the two libraries contains its own copy of ONNX Runtime. They share no thread pool, and the library of an
execution provider must be registered with both. Errors about a missing provider say what to install.
"""

import importlib
import importlib.metadata
import logging
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime

from genai_server.engine.host import has_vnni
from genai_server.engine.model.native_library import native_library
from genai_server.errors import ConfigurationError, quoted
from genai_server.options import session
from genai_server.options.device import DeviceOptions, ProviderOptions
from genai_server.options.providers import CPU, PROVIDERS, provider
from genai_server.system.installation import this_installation
from genai_server.system.resources import usable_cores, usable_cpus

log = logging.getLogger(__name__)
_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
# By ONNX Runtime's names of types.
NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
# Locates the weights of a graph that was not read from a file.
EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"
# Providers whose libraries need the CUDA libraries.
_ON_CUDA = {"cuda", "tensorrt", "nv_tensorrt_rtx"}
# Options of built-in providers that ONNX Runtime would set otherwise: it doubles an arena each time it grows, and keeps
# what no pass needs.
_DEFAULTS = {"cuda": {"arena_extend_strategy": "kSameAsRequested"}}
_RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
# With this entry ONNX Runtime makes 8-bit weights unsigned on x86 processors, from optimization level "extended" on.
# Products with signed ones would overflow on processors without VNNI, which add pairs of products in 16 bits. On those
# with VNNI or AMX, they are two to four times as fast.
_UNSIGNED_WEIGHTS = "session.x64quantprecision"


def config_entries(options: DeviceOptions, threads: int) -> dict[str, str]:
    """Return ONNX Runtime's session configuration entries, by name: those in the device's options, and the server's
    defaults for other entries.

    `threads` is the configured number of threads, 0 for the usable physical cores.
    """
    defaults = {} if has_vnni() else {_UNSIGNED_WEIGHTS: "1"}
    if num_threads(options, threads) >= usable_cpus():
        # Threads that spin between passes would keep the API process from sending tokens.
        defaults[session.SPINNING_STOP] = "1"
    return defaults | options.entries


def num_threads(options: DeviceOptions, threads: int) -> int:
    """Return the number of threads with which ONNX Runtime runs an operator: the number in the device's options if that
    has one; otherwise `threads`; or, if that is 0, the number of usable physical cores.
    """
    return int(options.session.get(session.THREADS, "0")) or threads or usable_cores()


def with_found_libraries(options: DeviceOptions, model_dir: Path) -> DeviceOptions:
    """Return a copy of a device's options in which the libraries of custom operators have absolute paths. Raises
    ConfigurationError if one does not exist.

    Relative paths are searched in the model directory and then in the working directory, because each of the two copies
    of ONNX Runtime would search other folders.
    """
    paths = []
    for name in options.custom_op_libraries:
        path = next((path for path in (model_dir / name, Path(name)) if path.is_file()), None)
        if path is None:
            raise ConfigurationError(
                f"[session] {session.LIBRARIES}: {name}: there is no such file, neither in {model_dir} "
                "nor in the working directory"
            )
        paths.append(str(path.resolve()))
    return msgspec.structs.replace(options, custom_op_libraries=paths)


def genai_overlay(options: DeviceOptions, threads: int) -> dict[str, Any]:
    """Return changes of the decoder's section in genai_config.json, as a JSON object, with which onnxruntime-genai
    applies the device's options.

    `threads` is the configured number of threads, 0 for the usable physical cores. Raises ConfigurationError for
    options that onnxruntime-genai cannot apply.
    """
    overlay: dict[str, Any] = {session.THREADS: num_threads(options, threads)}
    configured = options.session
    if "inter_op_num_threads" in configured:
        overlay["inter_op_num_threads"] = int(configured["inter_op_num_threads"])
    if session.LEVEL in configured:
        overlay[session.LEVEL] = _LEVELS[configured[session.LEVEL]]
    overlay |= {name: configured[name] == "1" for name in (session.ARENA, session.PATTERN) if name in configured}
    overlay |= config_entries(options, threads)
    if options.custom_op_libraries:
        if len(options.custom_op_libraries) > 1:
            raise ConfigurationError(
                f"[session] {session.LIBRARIES}={quoted(options.custom_op_libraries)}: "
                "onnxruntime-genai's model takes only one"
            )
        overlay["custom_ops_library"] = options.custom_op_libraries[0]
    return {"session_options": overlay} | ({"run_options": dict(options.run)} if options.run else {})


def configure_providers(library: Any, config: Any, options: DeviceOptions) -> None:
    """Replace the execution providers in `config`, a configuration of onnxruntime-genai, with those of a device and
    their options.

    `library` is the module onnxruntime_genai. Raises ConfigurationError if the library of a provider cannot be loaded.
    """
    config.clear_providers()
    for ep in options.providers:
        register(library, ep)
        name = provider(ep.name).genai
        assert name is not None  # unknown providers were refused before
        config.append_provider(name)
        for key, value in ep.options.items():
            config.set_provider_option(name, key, value)


def register(library: Any, ep: ProviderOptions) -> None:
    """Make an execution provider known to `library`, the module onnxruntime or onnxruntime_genai, if the provider comes
    in a library of its own. Does nothing for a provider that is built in or already registered.

    Raises ConfigurationError if the provider's library cannot be loaded.
    """
    where = library_of(ep)
    if where is None:
        return
    try:
        library.register_execution_provider_library(provider(ep.name).onnxruntime, where)
    except Exception as error:  # each library has its own errors
        if "already registered" not in str(error):
            raise ConfigurationError(f"[provider.{ep.name}] {where}: {error}") from None


def library_of(ep: ProviderOptions) -> str | None:
    """Return the absolute path of the library that contains an execution provider; None if the provider is built into
    ONNX Runtime.

    Raises ConfigurationError if the library, or the Python package that brings it, is missing.
    """
    if ep.package:
        try:
            return str(importlib.import_module(ep.package).get_library_path())
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"[provider.{ep.name}] package={quoted(ep.package)}: {error}") from None
    if ep.library and not Path(ep.library).is_file():
        raise ConfigurationError(
            f"[provider.{ep.name}] library={quoted(ep.library, limit=1000)}: there is no such file"
        )
    return str(Path(ep.library).resolve()) if ep.library else None


def missing_device(options: DeviceOptions) -> str | None:
    """Return a message about the first execution provider in the options that finds no suitable device on this machine;
    None if there is no such provider. Only providers with a library of their own are examined.

    Raises ConfigurationError for a provider whose library ONNX Runtime cannot load.
    """
    for ep in options.providers:
        if ep.package or ep.library:
            register(onnxruntime, ep)
            if not _devices_of(ep):
                return f"provider {ep.name}: its library finds no suitable device on this machine"
    return None


def _devices_of(ep: ProviderOptions) -> list[Any]:
    name = provider(ep.name).onnxruntime
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]


def session_options(options: DeviceOptions, threads: int, *, profile_prefix: str = "") -> Any:
    """Return ONNX Runtime's SessionOptions for a session on a device. They do not have the execution providers, which
    `open_with` adds.

    `threads` is the configured number of threads, 0 for the usable physical cores. With a `profile_prefix`, ONNX
    Runtime profiles the whole session into files whose paths begin with it. Raises ConfigurationError if a library of
    custom operators cannot be loaded.
    """
    ort_options, configured = onnxruntime.SessionOptions(), options.session
    level = configured.get(session.LEVEL, "all")
    ort_options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[level])
    inter_op = int(configured.get("inter_op_num_threads", "0"))
    if configured.get(session.POOL) == "1":
        ort_options.use_per_session_threads = False
    else:
        ort_options.intra_op_num_threads = num_threads(options, threads)
        ort_options.inter_op_num_threads = inter_op
    if configured.get(session.MODE) == "parallel":
        ort_options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    if session.ARENA in configured:
        ort_options.enable_cpu_mem_arena = configured[session.ARENA] == "1"
    if profile_prefix:
        ort_options.enable_profiling, ort_options.profile_file_prefix = True, profile_prefix
    if session.PATTERN in configured:
        ort_options.enable_mem_pattern = configured[session.PATTERN] == "1"
    for name, value in config_entries(options, threads).items():
        ort_options.add_session_config_entry(name, value)
    for path in options.custom_op_libraries:
        try:
            ort_options.register_custom_ops_library(path)
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise ConfigurationError(f"[session] {session.LIBRARIES}: {path}: {error}") from None
    return ort_options


def use_global_pool(options: DeviceOptions, threads: int) -> None:
    """Create the thread pool that all ONNX Runtime sessions of the process share, if the device's options ask for one;
    otherwise do nothing. `threads` is the number of its threads, 0 for the usable physical cores.

    Must be called before the first session is opened.
    """
    if options.session.get(session.POOL) == "1":
        inter_op = int(options.session.get("inter_op_num_threads", "0"))
        onnxruntime.set_global_thread_pool_sizes(num_threads(options, threads), inter_op)


def preload_cuda(options: DeviceOptions) -> None:
    """Load the CUDA libraries in the installed nvidia-* packages if one of the device's execution providers needs them.

    This is necessary because the operating system does not look for libraries in the folders of these packages.
    """
    if any(ep.name in _ON_CUDA for ep in options.providers):
        onnxruntime.preload_dlls(cuda=True, cudnn=True)


def open_with(model: Path | bytes, ort_options: Any, options: DeviceOptions) -> Any:
    """Open and return an ONNX Runtime session for a model, given as a path or serialized. The nodes of its graph are
    assigned to the device's execution providers in their order, and the CPU gets the remaining ones.

    `ort_options` are the SessionOptions, to which the providers of `options` may be added. Raises ConfigurationError
    for a provider that ONNX Runtime does not contain, and the providers' own errors.
    """
    given_model = model if isinstance(model, bytes) else str(model)
    ort_options.add_session_config_entry(_RECORD_ASSIGNMENT, "1")
    available = onnxruntime.get_available_providers()
    built_in: list[tuple[str, dict[str, str]]] = []
    for ep in options.providers:
        name = provider(ep.name).onnxruntime
        register(onnxruntime, ep)
        devices = _devices_of(ep)
        if devices and (ep.library or ep.package):
            ort_options.add_provider_for_devices(devices[:1], ep.options)
        elif name in available:
            built_in.append((name, _DEFAULTS.get(ep.name, {}) | ep.options))
        else:
            raise ConfigurationError(
                missing_device(options)
                or f"provider {ep.name}: the installed onnxruntime has no {name}; it has {', '.join(available)}"
                f"{how_to_get(ep.name)}"
            )
    if ort_options.has_providers():
        if built_in:
            raise ConfigurationError(
                f"provider {built_in[0][0]}: ONNX Runtime cannot combine built-in providers with those of libraries"
            )
        return onnxruntime.InferenceSession(given_model, ort_options, enable_fallback=0)
    providers = [*built_in, (PROVIDERS[CPU].onnxruntime, {})]
    # Otherwise it would print a message when a provider fails, and continue on the CPU alone.
    return onnxruntime.InferenceSession(given_model, ort_options, providers=providers, enable_fallback=0)


def open_encoder(
    model: Path | bytes, threads: int, options: DeviceOptions, *, is_packed: bool = False, folder: Path | None = None
) -> Any:
    """Open and return an ONNX Runtime session for an encoder, given as a path or serialized. Its threads do not spin
    while they are idle, because the decoder's passes run at the same time.

    `threads` is the number of threads, 0 for the usable physical cores. `is_packed` says that the graph has operators
    of genai-server-native. `folder` is the folder with the weight files of a serialized model. Raises
    ConfigurationError for a provider that ONNX Runtime does not contain, and the providers' own errors.
    """
    ort_options = session_options(options, threads)
    if is_packed:
        ort_options.register_custom_ops_library(str(native_library()))
    ort_options.add_session_config_entry(session.SPINNING, "0")
    if folder is not None:
        ort_options.add_session_config_entry(EXTERNAL_DATA, str(folder))
    return open_with(model, ort_options, options)


def node_shares(opened: Any) -> dict[str, int]:
    """Return how many nodes of the graph of `opened`, a session of ONNX Runtime, run on each execution provider. The
    keys are this server's names of the providers, such as "cuda", the provider with the most nodes first.
    """
    server_names = {definition.onnxruntime: name for name, definition in PROVIDERS.items()}
    counts: Counter[str] = Counter()
    for part in opened.get_provider_graph_assignment_info():
        counts[server_names.get(part.ep_name, part.ep_name)] += len(part.get_nodes())
    return dict(counts.most_common())


# The package of the extra `directml`, whose last version on the package index loads no current model.
_OLD_DIRECTML = "onnxruntime-genai-directml"


def how_to_get(name: str) -> str:
    """Return advice on what to install to get a missing execution provider, to be appended to an error message; "" if
    none is known. `name` is this server's name of the provider.
    """
    definition = provider(name)
    if definition.package:
        package = definition.package.replace("_", "-")
        return f'; pip install {package}, and write package = "{definition.package}" in [provider.{name}]'
    if definition.extra == "winml" and sys.platform != "win32":
        return "; DirectML is for Windows only"
    if definition.extra and _version(f"onnxruntime-genai-{definition.extra}") is None:
        return f"; the extra {definition.extra} has it: {this_installation().device_command(definition.extra)}"
    return ""


def newer_directml() -> str:
    """Return advice to replace an outdated DirectML package, to be appended to an error message about a model that
    cannot be loaded; "" if the outdated package is not installed.
    """
    version = _version(_OLD_DIRECTML)
    if version is None:
        return ""
    command = this_installation().device_command("winml")
    return f"; {_OLD_DIRECTML} {version} is the last of its kind, the extra winml has today's library: {command}"


def _version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
