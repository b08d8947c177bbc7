"""Loads a batched runner: its graph, its session, and the weights of 8 bits next to it.

Modules which import ONNX Runtime are imported in the functions, because a scripted device works without it.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit
from genai_server.engine.model.files import read_config, session_profile
from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.speech_files import read_cross_decoder
from genai_server.engine.profiling.folder import profile_folder
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.lengths import batch_limits, on_cpu, with_cache_type
from genai_server.engine.runners.runner_rules import check_reach, never_batched
from genai_server.errors import ConfigurationError, RunnerFailed, in_one_line
from genai_server.messages.generation_request import ModelInfo
from genai_server.messages.launch import EngineSpec
from genai_server.options.table import Reach
from genai_server.pooling_model import Task, task_of
from genai_server.system_memory import free_memory

if TYPE_CHECKING:
    from genai_server.engine.runners.batch_sessions import Int8Session
    from genai_server.engine.runners.batched import BatchedRunner

log = logging.getLogger(__name__)
# The share of the free memory that 8-bit weights may take if the settings leave the choice to the engine.
_INT8_SHARE = 0.25
# How many times faster 8-bit weights must be, in the same case.
_MIN_GAIN = 1.2


def load_batched(spec: EngineSpec, model_dir: Path, model: ModelInfo) -> "BatchedRunner":
    """The batched runner of the model in `model_dir`. On CPUs, it has packed weights.

    Raises DoesNotFit if the settings exclude it or it cannot run the model. Raises ConfigurationError if
    GENAI_KV_CACHE_BYTES is too small for a single request, because Generators would not keep to that limit.
    """
    from genai_server.engine.model.weights import prepacked_model

    why = never_batched(spec.device, Path(spec.model_dir), spec.settings)
    if why is not None:
        raise DoesNotFit(why)
    is_speech_model = task_of(model_dir) is Task.TRANSCRIBE
    if on_cpu(spec) and not is_speech_model:
        native = _load_native(spec, model_dir, model)
        if native is not None:
            return native
        model_dir = prepacked_model(model_dir, cache_dir(spec), spec.options)
    graph = read_cross_decoder(model_dir) if is_speech_model else read_decoder_graph(model_dir)
    if graph.bytes_per_row and not on_cpu(spec):
        raise DoesNotFit("its layers have states of fixed size, which a batch keeps in the memory of a CPU only")
    return _load(spec, graph, model, optimized=model_dir != Path(spec.model_dir))


def cache_dir(spec: EngineSpec) -> Path | None:
    """Where packed weights are kept; None for nowhere."""
    return Path(spec.settings.cache_dir) if spec.settings.cache_dir else None


def _load_native(spec: EngineSpec, model_dir: Path, model: ModelInfo) -> "BatchedRunner | None":
    """The batched runner with genai-server-native's operators; None where they cannot run the model.

    Raises ConfigurationError if they cannot, and GENAI_CPU_OPERATORS asks for them.
    """
    from genai_server.engine.model.native_library import why_not_native
    from genai_server.engine.model.weights import native_model

    is_needed = spec.settings.cpu_operators == "native"
    reason = why_not_native(spec.settings, spec.options)
    if reason is None:
        try:
            packed = native_model(model_dir, cache_dir(spec), spec.options)
            graph = read_decoder_graph(packed)
            if graph.bytes_per_row:
                raise DoesNotFit("its layers have states of fixed size")
            # A graph that computes in 16 bits is widened (engine/graph_rewriting/widening.py).
            graph = replace(graph, is_native=True, cache_type=np.float32, logits_type=np.float32)
            return _load(spec, graph, model, optimized=False)
        except DoesNotFit as error:
            reason = str(error)
    if is_needed:
        raise ConfigurationError(f"GENAI_CPU_OPERATORS=native: {reason}")
    if spec.settings.cpu_operators == "auto":
        log.info("ONNX Runtime's own operators run the batch: %s", reason)
    return None


def _load(spec: EngineSpec, graph: DecoderGraph, model: ModelInfo, *, optimized: bool) -> "BatchedRunner":
    """The batched runner of a graph, which ONNX Runtime has `optimized` before. Raises as `load_batched` does."""
    from genai_server.engine.kv_cache.buffers import buffers_on
    from genai_server.engine.model.session import open_session
    from genai_server.engine.runners.batched import BatchedRunner
    from genai_server.engine.runners.device_memory import with_memory_left

    settings = spec.settings
    graph = with_cache_type(spec, graph, model.context_length)
    if on_cpu(spec):
        limits, model = batch_limits(spec, graph, model)
    prefix = session_profile_prefix(spec)
    try:
        session = open_session(
            graph,
            settings.threads,
            optimized=optimized,
            offers_best=not on_cpu(spec),
            options=spec.options,
            profile_prefix=f"{prefix}_batch" if prefix else "",
        )
    except (ConfigurationError, DoesNotFit):
        raise
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        raise DoesNotFit(f"its graph for a batch cannot be loaded: {in_one_line(error)}") from error
    int8 = int8_graph(spec, graph.path) if optimized and on_cpu(spec) and not prefix else None
    try:
        if not on_cpu(spec):
            spec = with_memory_left(spec, graph, session, model)
            limits, model = batch_limits(spec, graph, model)
        runner = BatchedRunner(
            graph,
            session,
            model,
            limits,
            int8=None if int8 is None else _int8_session(spec, replace(graph, path=int8)),
            run_entries=spec.options.run,
            make_buffers=buffers_on(spec.device, spec.options, limits.num_slots + limits.memory.num_pages),
        )
    except RunnerFailed as error:
        raise DoesNotFit(f"its first pass in a batch failed: {error.message}") from error
    check_reach(spec.device, spec.options, Reach.BATCHED, "requests run in a batch")
    log_nodes(runner)
    return runner


def int8_graph(spec: EngineSpec, graph: Path, part: str = "decoder", *, floats: bool = False) -> Path | None:
    """The graph with matrices of 8 bits in place of 4-bit ones, and with `floats` of those in 16 and 32 bits.

    Made if needed; None if the settings leave it out.
    """
    from genai_server.engine.graph_rewriting.int8_matrices import int8_bytes
    from genai_server.engine.model.weights import int8_model

    settings = spec.settings
    needed, allowed = int8_bytes(graph, floats=floats), int(_INT8_SHARE * free_memory())
    if settings.prefill_weights == "int4" or not settings.cache_dir or not needed:
        return None
    if settings.prefill_weights == "auto" and needed > allowed:
        log.info("weights of 8 bits are not used: they need %d bytes, and may have %d", needed, allowed)
        return None
    model_dir, cache_dir = Path(spec.model_dir), Path(settings.cache_dir)
    int8_dir = int8_model(model_dir, cache_dir, spec.options, settings.threads, part=part, floats=floats)
    return None if int8_dir is None else int8_dir / read_config(model_dir)["model"][part]["filename"]


def min_gain(spec: EngineSpec) -> float:
    """How many times faster than a model's own weights those of 8 bits must be."""
    return _MIN_GAIN if spec.settings.prefill_weights == "auto" else 1.0


def _int8_session(spec: EngineSpec, graph: DecoderGraph) -> "Int8Session | None":
    from genai_server.engine.model.session import open_session
    from genai_server.engine.runners.batch_sessions import Int8Session

    try:
        session = open_session(graph, spec.settings.threads, optimized=True, options=spec.options)
    except Exception as error:  # as above
        log.warning("weights of 8 bits are not used: %s", in_one_line(error))
        return None
    return Int8Session(session, min_gain(spec))


def log_nodes(runner: Runner) -> None:
    """Log how many nodes of a graph each provider runs."""
    counts = (f"{count} on {name}" for name, count in runner.nodes.items())
    log.info("nodes of the graph: %s", ", ".join(counts))


def session_profile_prefix(spec: EngineSpec) -> str:
    """The path prefix for profiles of the whole session; empty if the model's configuration asks for none.

    The name comes from the model's configuration, the folder from the settings. Raises Unavailable.
    """
    name = session_profile(Path(spec.model_dir))
    if not name:
        return ""
    folder = profile_folder(spec)
    folder.prepare()
    return folder.path_prefix(name)
