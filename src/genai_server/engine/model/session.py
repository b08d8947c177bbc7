"""The ONNX Runtime session in which the batched runner runs a decoder's graph."""

from typing import Any

import onnx

from genai_server.engine.model.graph import DecoderGraph
from genai_server.engine.model.mixed_step import mix_steps
from genai_server.engine.model.output_head import narrow_head, offer_best
from genai_server.engine.model.session_options import open_with, session_options
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions

# Locates the weights of a graph that was not read from a file.
EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"
_ERRORS = 3  # ONNX Runtime's level of severity


def open_session(
    graph: DecoderGraph,
    threads: int,
    *,
    optimized: bool,
    offers_best: bool = False,
    options: DeviceOptions = DEFAULT_OPTIONS,
    profile_prefix: str = "",
) -> Any:
    """An ONNX Runtime session with a device's options.

    Its head reads only chosen positions, if possible, and with `offers_best` selects the best logits
    (engine/model/output_head.py). `threads` 0 uses the physical cores that the process may use. `optimized` says that
    the graph has been optimized already. With a `profile_prefix`, ONNX Runtime profiles the session from load to end.
    Raises ConfigurationError for options that name something missing.
    """
    found = session_options(options, threads, optimized=optimized)
    if graph.takes_adapters:
        found.log_severity_level = _ERRORS  # it would warn about each of their inputs
    if profile_prefix:
        found.enable_profiling, found.profile_file_prefix = True, profile_prefix
    model = onnx.load(str(graph.path), load_external_data=False)
    is_changed = not graph.gives_last_logits_only and narrow_head(model.graph, graph.logits)
    if offers_best:
        offer_best(model.graph, graph.logits)
    if not (is_changed or offers_best):
        return open_with(graph.path, found, options)
    found.add_session_config_entry(EXTERNAL_DATA, str(graph.path.parent))
    return open_with(model.SerializeToString(), found, options)


def open_mixed_session(
    graph: DecoderGraph, threads: int, *, optimized: bool, options: DeviceOptions = DEFAULT_OPTIONS
) -> Any:
    """A session of the same weights for mixed steps (engine/model/mixed_step.py); None if the graph prevents them."""
    model = onnx.load(str(graph.path), load_external_data=False)
    if not mix_steps(model.graph, graph):
        return None
    found = session_options(options, threads, optimized=optimized)
    found.log_severity_level = _ERRORS
    found.add_session_config_entry(EXTERNAL_DATA, str(graph.path.parent))
    return open_with(model.SerializeToString(), found, options)
